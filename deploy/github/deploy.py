"""The second step of the action: run `runyard deploy` or `runyard delete`, log its output, set the action's outputs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wording
from runner import Silenced, annotate, fail, write_outputs, write_summary

SHORTEST_SECRET = 4  # shorter values occur by chance in too much other text
ASSIGNMENT = re.compile(r"\s*(?:export\s+)?[A-Za-z_]\w*\s*=\s*(.*?)\s*")


def main() -> int:
    seconds = os.environ["INPUT_WAIT_TIMEOUT"]
    if not re.fullmatch(r"\d+(\.\d+)?", seconds):
        return fail(f"wait-timeout must be a number of seconds, and is {seconds!r}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    name, is_deletion = os.environ["NAME"], os.environ["TASK"] == "delete"
    with env_file(os.environ["INPUT_ENV"]) as path:
        command = delete_command(name) if is_deletion else deploy_command(name, path, float(seconds))
        code, result = run(command)
    record = masked({"name": name, **result, "status": status_of(result, code, is_deletion=is_deletion)})
    report(record, code)
    return code


def deploy_command(name: str, env_path: Path | None, seconds: float) -> list[str]:
    wait = ["--timeout", f"{seconds:g}"] if seconds else ["--no-wait"]
    pool = ["--pool", os.environ["INPUT_POOL"]] if os.environ["INPUT_POOL"] else []
    env = ["--env-file", str(env_path)] if env_path else []
    preview = os.environ.get("PREVIEW")  # only with a replay, which needs the past runs of the deployment
    rule = os.environ.get("INPUT_FAIL_ON")
    replay = [f"--preview={preview}", f"--replay={os.environ['INPUT_REPLAY']}"] if preview else []
    replay += [f"--fail-on={rule}"] if preview and rule else []
    replay += ["--promote"] if os.environ.get("PROMOTE") == "true" else []
    options = ["--json", "--no-input", f"--name={name}", *wait, *pool, *env, *replay]
    return ["runyard", "deploy", *options, "--", os.environ["INPUT_DIRECTORY"]]


def delete_command(name: str) -> list[str]:
    if preview := os.environ.get("PREVIEW"):
        return ["runyard", "previews", f"--delete={preview}", "--if-exists", "--json", "--", name]
    return ["runyard", "delete", "--force", "--if-exists", "--json", "--", name]


@contextmanager
def env_file(text: str) -> Iterator[Path | None]:
    """A temporary file with the deployment's variables. Other users of the machine can read a command's arguments."""
    if not text.strip():
        yield None
        return
    descriptor, name = tempfile.mkstemp(dir=os.environ.get("RUNNER_TEMP"))
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        yield Path(name)
    finally:
        os.unlink(name)


def run(command: list[str]) -> tuple[int, dict[str, Any]]:
    """Run the command and print its output as text. Returns its exit code and the last JSON line with a result."""
    result: dict[str, Any] = {}
    with (
        Silenced(),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said = read(line)
                print(text_of(said, line), flush=True)
                if said.get("event") in ("result", "error") or "deleted" in said:
                    result = said
        except BaseException:
            process.terminate()
            raise
    code = process.returncode
    return code, result or {"message": f"{' '.join(command[:2])} ended with exit code {code}."}


def read(line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def text_of(said: dict[str, Any], line: str) -> str:
    """Render one JSON line of output as text."""
    event = said.get("event")
    if event == "status_change":
        return f"{said['status']} after {said['elapsed_seconds']} s"
    if event == "upload_progress":
        return f"  {said['percent']} % of the source is sent"
    if event == "log":
        return f"  {said['message']}"
    return str(said.get("message") or line.rstrip("\n"))


def status_of(result: dict[str, Any], code: int, *, is_deletion: bool) -> str:
    if is_deletion:
        return "failed" if code else "deleted"
    return str(result.get("status") or "failed")


def masked(value: Any) -> Any:
    """Return the value with all secrets masked, because GitHub masks secrets only in its logs."""
    if isinstance(value, dict):
        return {name: masked(part) for name, part in value.items()}
    if isinstance(value, list):
        return [masked(part) for part in value]
    if isinstance(value, str):
        for secret in hidden():
            value = value.replace(secret, "***")
    return value


def hidden() -> list[str]:
    """Return the API key and the variables' values, longest first, so that no secret is masked only in part."""
    found = [os.environ["RUNYARD_API_KEY"]]
    for line in os.environ["INPUT_ENV"].splitlines():
        assigned = ASSIGNMENT.fullmatch(line)
        if assigned:
            found += [assigned[1], assigned[1].strip("'\"")]
    return sorted((one for one in set(found) if len(one) >= SHORTEST_SECRET), key=len, reverse=True)


def report(record: dict[str, Any], code: int) -> None:
    """Write the outputs, the summary, an annotation, and the record for the step that comments."""
    path = Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir()) / f"runyard-{os.getpid()}.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    write_outputs(
        {
            "record": path,
            "status": record["status"],
            "name": record["name"],
            "deployment-id": record.get("deployment_id") or record.get("id"),
            "revision-id": record.get("revision_id"),
            "url": record.get("url"),
        }
    )
    write_summary(wording.of(record))
    annotate("error" if code else "notice", wording.sentence(record))


if __name__ == "__main__":
    sys.exit(main())
