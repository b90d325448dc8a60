"""The first step of the action: decide whether this event deploys or deletes, and under which name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runner import PullRequest, annotate, fail, pull_request, write_outputs

DEPLOY, DELETE, NOTHING = "deploy", "delete", "nothing"
PROMOTED = "ci"  # preview that a push is tested at before it serves
NO_SECRETS = (
    "Nothing is deployed: GitHub gives no secrets to pull requests of forks and of Dependabot, and without an API key"
    " there is no preview. Somebody with write access may push the branch to this repository."
)
ANYBODYS_CODE = (
    "Nothing is deployed: pull_request_target gives secrets to workflows of a fork's pull request, whose code is"
    " anybody's. Use the event pull_request."
)


def main() -> int:
    mode, preview = os.environ["INPUT_MODE"], os.environ["INPUT_PREVIEW"]
    if mode not in ("auto", DEPLOY, DELETE):
        return fail(f"mode must be auto, deploy or delete, and is {mode!r}")
    if preview not in ("true", "false"):
        return fail(f"preview must be true or false, and is {preview!r}")
    promote = os.environ["INPUT_PROMOTE"]
    if promote not in ("true", "false"):
        return fail(f"promote must be true or false, and is {promote!r}")
    if promote == "true" and not (os.environ["INPUT_REPLAY"] and os.environ["INPUT_FAIL_ON"]):
        return fail("promote needs replay and fail-on: without a rule, no replay passes")
    found = pull_request()
    if found and found.is_foreign and os.environ.get("GITHUB_EVENT_NAME") == "pull_request_target":
        return fail(ANYBODYS_CODE)
    task = task_of(mode, found, has_preview=preview == "true")
    if task is None:
        return fail(
            "mode delete needs a pull request and preview true: no other deployment is deleted by a pipeline"
        )
    if task == NOTHING:
        return skip("The pull request was closed, and it has no preview that could be deleted.")
    if not os.environ["INPUT_API_KEY"]:
        is_expected = found is not None and not found.gets_secrets
        return skip(NO_SECRETS) if is_expected else fail("api-key is empty: is there a secret of that name?")
    if not os.environ["INPUT_URL"]:
        return fail("url is empty: it must be the service's address")
    preview_of = found if preview == "true" else None
    if preview_of and os.environ["INPUT_REPLAY"]:
        write_outputs({"task": task, "name": name_of(None), "preview": f"pr-{preview_of.number}"})
    elif preview_of is None and promote == "true":
        write_outputs({"task": task, "name": name_of(None), "preview": PROMOTED, "promote": promote})
    else:
        write_outputs({"task": task, "name": name_of(preview_of)})
    return 0


def task_of(mode: str, found: PullRequest | None, *, has_preview: bool) -> str | None:
    """Return the task, or None if the request is invalid: only a preview may be deleted."""
    is_preview = found is not None and has_preview
    if mode == DELETE:
        return DELETE if is_preview else None
    if mode == "auto" and found is not None and found.is_closed:
        return DELETE if is_preview else NOTHING
    return DEPLOY


def name_of(preview_of: PullRequest | None) -> str:
    name = os.environ["INPUT_NAME"] or Path(os.environ["INPUT_DIRECTORY"]).resolve().name
    return f"{name}-pr-{preview_of.number}" if preview_of else name


def skip(why: str) -> int:
    annotate("notice", why)
    write_outputs({"task": NOTHING, "status": "skipped"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
