"""The interface to GitHub's runner: its event, outputs, summary and annotations."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEPENDABOT = "dependabot[bot]"


@dataclass(frozen=True)
class PullRequest:
    """The pull request that triggered the workflow."""

    number: int
    is_closed: bool
    is_foreign: bool  # from a fork, so its code is untrusted
    author: str

    @property
    def gets_secrets(self) -> bool:
        """Whether GitHub passes the repository's secrets to workflows of this pull request."""
        return not self.is_foreign and self.author != DEPENDABOT


def pull_request() -> PullRequest | None:
    """Return the pull request of the workflow's event, or None for other events."""
    event: dict[str, Any] = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    found = event.get("pull_request")
    if not isinstance(found, dict):
        return None
    head = (found.get("head") or {}).get("repo") or {}  # null once the fork is deleted
    base = (found.get("base") or {}).get("repo") or {}
    return PullRequest(
        number=int(found["number"]),
        is_closed=event.get("action") == "closed",
        is_foreign=head.get("full_name") != base.get("full_name"),
        author=str((found.get("user") or {}).get("login")),
    )


def write_outputs(values: Mapping[str, object]) -> None:
    """Set outputs of this step. A random delimiter allows any value, including several lines."""
    end = f"end-{secrets.token_hex(16)}"
    with open(os.environ["GITHUB_OUTPUT"], "a", encoding="utf-8") as file:
        for name, value in values.items():
            file.write(f"{name}<<{end}\n{'' if value is None else value}\n{end}\n")


def write_summary(markdown: str) -> None:
    """Append Markdown to the summary page of the workflow run."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(markdown + "\n")


def annotate(kind: str, message: str) -> None:
    """Add a `notice`, `warning` or `error` annotation to the workflow run."""
    text = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    print(f"::{kind} title=runyard::{text}", flush=True)


def fail(message: str) -> int:
    """Annotate the error and return the exit code 1."""
    annotate("error", message)
    return 1


class Silenced:
    """A context in which the runner does not interpret printed lines as workflow commands."""

    def __enter__(self) -> None:
        self._token = secrets.token_hex(16)
        print(f"::stop-commands::{self._token}", flush=True)

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        print(f"::{self._token}::", flush=True)
