"""The result of a deploy as Markdown, for the pull request comment and the summary of the workflow run."""

from __future__ import annotations

import re
from typing import Any

SERVES = ("succeeded", "replay_failed", "replay_not_judged")
LINES, MOST_CHARACTERS = 30, 20_000
CONTROL_CHARACTERS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
FENCE = "`"


def of(record: dict[str, Any]) -> str:
    """Render a headline, and on failure the reason and the last lines of the build log."""
    status = record["status"]
    if status in SERVES:
        serves = f"**{record['name']}** serves at {record['url']} (revision {_number(record)})."
        if "table" not in record:
            return serves
        return f"{serves}\n\nReplay of past runs: {record['message']}\n\n{fenced(record['table'])}"
    if status in ("deleted", "started"):
        return sentence(record)
    parts = [f"**{record['name']}** was not deployed: {_headline(record)}."]
    reason = record.get("reason") or record.get("message")
    if reason:
        parts.append(fenced(str(reason)))
    lines = [str(line) for line in record.get("log") or []][-LINES:]
    if lines:
        shown = fenced("\n".join(lines))
        parts.append(f"<details><summary>The last lines of the build log</summary>\n\n{shown}\n\n</details>")
    return "\n\n".join(parts)


def sentence(record: dict[str, Any]) -> str:
    """Render the result in one plain line."""
    status, name = record["status"], record["name"]
    if status in SERVES:
        replayed = f": {record['message']}" if "table" in record else ""
        return f"{name} serves at {record['url']}{replayed}"
    if status == "started":
        return f"{name} is being built."
    if status == "deleted" and record.get("preview"):
        return f"The preview {record['preview']} of {name} is deleted."
    if status == "deleted":
        return f"{name} is deleted with its threads and runs."
    return str(record.get("message") or f"{name}: {_headline(record)}.")


def _headline(record: dict[str, Any]) -> str:
    if record["status"] == "timed_out":
        return f"it is still {record.get('revision_status') or 'on its way'}, and the build continues there"
    step = record.get("step")
    return (
        f"the step `{step}` failed"
        if step
        else str(record.get("revision_status") or "the service refused it")
    )


def _number(record: dict[str, Any]) -> str:
    number = record.get("revision_number")
    return f"v{number}" if number else str(record.get("revision_id"))


def fenced(text: str) -> str:
    """Render text as a code block. The fence is longer than any run of backticks in the text, so none can close it."""
    plain = CONTROL_CHARACTERS.sub("", text)[-MOST_CHARACTERS:]
    runs = [len(found) for found in re.findall(f"{FENCE}+", plain)]
    fence = FENCE * max([3, *(run + 1 for run in runs)])
    return f"{fence}text\n{plain}\n{fence}"
