"""What GitHub's runner tells a step, and what it takes from one."""

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
    """The pull request that an event is about."""

    number: int
    is_closed: bool
    is_foreign: bool  # of a fork: anybody's code
    author: str

    @property
    def gets_secrets(self) -> bool:
        """Whether GitHub gives this pull request's workflows the repository's secrets."""
        return not self.is_foreign and self.author != DEPENDABOT


def pull_request() -> PullRequest | None:
    """The pull request of this workflow's event; None for any other event."""
    event: dict[str, Any] = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    found = event.get("pull_request")
    if not isinstance(found, dict):
        return None
    head = (found.get("head") or {}).get("repo") or {}  # None once the fork is deleted
    base = (found.get("base") or {}).get("repo") or {}
    return PullRequest(
        number=int(found["number"]),
        is_closed=event.get("action") == "closed",
        is_foreign=head.get("full_name") != base.get("full_name"),
        author=str((found.get("user") or {}).get("login")),
    )


def write_outputs(values: Mapping[str, object]) -> None:
    """Set this step's outputs; a value may hold anything."""
    end = f"end-{secrets.token_hex(16)}"
    with open(os.environ["GITHUB_OUTPUT"], "a", encoding="utf-8") as file:
        for name, value in values.items():
            file.write(f"{name}<<{end}\n{'' if value is None else value}\n{end}\n")


def write_summary(markdown: str) -> None:
    """Add to the page of the workflow's run."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(markdown + "\n")


def annotate(kind: str, message: str) -> None:
    """Show a `notice`, `warning` or `error` beside the workflow's run."""
    text = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    print(f"::{kind} title=runyard::{text}", flush=True)


def fail(message: str) -> int:
    """Show why the step fails; its exit code."""
    annotate("error", message)
    return 1


class Silenced:
    """While it lasts, the runner takes nothing of what is printed for a command to itself."""

    def __enter__(self) -> None:
        self._token = secrets.token_hex(16)
        print(f"::stop-commands::{self._token}", flush=True)

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        print(f"::{self._token}::", flush=True)
