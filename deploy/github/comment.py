"""The last step of the action: post one comment on the pull request, and update it on each deploy."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wording
from runner import annotate, pull_request

ACTIONS_BOT = "github-actions[bot]"
PAGE, TRIES, PAUSE_SECONDS, TIMEOUT_SECONDS = 100, 3, 1.0, 30
DENIED = (401, 403, 404)


def main() -> int:
    found = pull_request()
    if found is None:
        return 0
    record = json.loads(Path(os.environ["RECORD"]).read_text(encoding="utf-8"))
    try:
        write(found.number, record)
    except urllib.error.HTTPError as error:
        annotate(
            "warning",
            f"The pull request has no comment: GitHub answers {error.code}. {_hint(error.code)}".strip(),
        )
    except OSError as error:
        annotate("warning", f"The pull request has no comment: {error}")
    return 0


def write(number: int, record: dict[str, Any]) -> None:
    """Update or create the comment. Creates none for a deletion if no deploy has commented before."""
    name = re.sub(r"[^a-z0-9-]+", "-", record["name"].lower())
    mark = f"<!-- runyard {name} -->"
    body = {"body": f"{mark}\n{wording.of(record)}"}
    place = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    own = next((row for row in comments(f"{place}/{number}/comments") if is_ours(row, mark)), None)
    if own is not None:
        call("PATCH", f"{place}/comments/{own['id']}", body)
    elif record["status"] != "deleted":
        call("POST", f"{place}/{number}/comments", body)


def is_ours(row: dict[str, Any], mark: str) -> bool:
    """Return whether this action wrote the comment. Any user may post a comment that begins with the same mark."""
    return str(row.get("body")).startswith(mark) and (row.get("user") or {}).get("login") == own_login()


_login: str | None = None


def own_login() -> str:
    """Return the login of the token's user. A workflow's own token may not read it, and belongs to `ACTIONS_BOT`."""
    global _login
    if _login is None:
        try:
            _login = str(call("GET", "/user")["login"])
        except urllib.error.HTTPError as error:
            if error.code not in DENIED:
                raise
            _login = ACTIONS_BOT
    return _login


def comments(path: str) -> Iterator[dict[str, Any]]:
    """Yield all comments of a pull request, page by page."""
    page = 1
    while True:
        rows = call("GET", f"{path}?per_page={PAGE}&page={page}")
        yield from rows
        if len(rows) < PAGE:
            return
        page += 1


def call(method: str, path: str, body: Any = None) -> Any:
    """Call GitHub's API. Retries server and connection errors, except of POST. Raises HTTPError and OSError."""
    request = urllib.request.Request(
        os.environ.get("GITHUB_API_URL", "https://api.github.com") + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={
            "Authorization": f"Bearer {os.environ['INPUT_GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            # No retry of a POST: if only its response was lost, the comment would be posted twice.
            if error.code < 500 or attempt == TRIES or method == "POST":
                raise
        except OSError:
            if attempt == TRIES or method == "POST":
                raise
        time.sleep(PAUSE_SECONDS * attempt)
    raise AssertionError("unreachable: the last try returns or raises")


def _hint(code: int) -> str:
    return "The workflow needs `permissions: pull-requests: write`." if code in DENIED else ""


if __name__ == "__main__":
    sys.exit(main())
