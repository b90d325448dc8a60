"""Run a composite GitHub Action on this machine: its `run` steps in bash, with the few expressions it uses.

Steps that use other actions are recorded and skipped. Log masking is not emulated: a secret in `Ran.log` is one that
the action printed itself.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
TOKEN = re.compile(r"\s*(\|\||&&|==|!=|!|\(|\)|'(?:[^']|'')*'|[A-Za-z_][\w.-]*(?:\(\))?)")
STATUS_FUNCTIONS = ("cancelled()", "always()", "failure()", "success()")


@dataclass
class Ran:
    """Result of running an action."""

    has_failed: bool = False
    log: str = ""
    summary: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)  # names of the steps that ran
    used: list[str] = field(default_factory=list)  # other actions that were skipped


class Action:
    """A folder with an action.yml."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.described: dict[str, Any] = yaml.safe_load((folder / "action.yml").read_text())

    def run(
        self,
        workspace: Path,
        scratch: Path,
        *,
        inputs: Mapping[str, str],
        event: Mapping[str, Any],
        env: Mapping[str, str],
        token: str = "",
    ) -> Ran:
        """Run the action in a checked-out repository. `scratch` holds the runner's own files."""
        unknown = set(inputs) - set(self.described["inputs"])
        assert not unknown, f"no inputs of the action: {unknown}"
        job = Job(self, workspace, scratch, event, env, token)
        job.known["inputs"] = {
            name: inputs.get(name, job.filled(str(one.get("default", ""))))
            for name, one in self.described["inputs"].items()
        }
        for step in self.described["runs"]["steps"]:
            job.step(step)
        for name, one in self.described["outputs"].items():
            job.ran.outputs[name] = job.filled(one["value"])
        return job.ran


class Job:
    """One job of GitHub's runner: variables, files and results while an action runs."""

    def __init__(
        self,
        action: Action,
        workspace: Path,
        scratch: Path,
        event: Mapping[str, Any],
        env: Mapping[str, str],
        token: str,
    ) -> None:
        self.ran = Ran()
        self._action, self._workspace, self._scratch = action, workspace, scratch
        scratch.mkdir(parents=True, exist_ok=True)
        (scratch / "event.json").write_text(json.dumps(event))
        self._summary = self._file("summary")
        self._path = self._file("path")
        self.known: dict[str, Any] = {
            "github": {"token": token, "event": event},
            "steps": {},
        }
        self._env = {
            **env,
            "CI": "true",
            "GITHUB_ACTION_PATH": str(action.folder),
            "GITHUB_EVENT_PATH": str(scratch / "event.json"),
            "GITHUB_STEP_SUMMARY": str(self._summary),
            "GITHUB_PATH": str(self._path),
            "GITHUB_WORKSPACE": str(workspace),
            "RUNNER_TEMP": str(scratch),
        }

    def _file(self, name: str) -> Path:
        path = self._scratch / name
        path.write_text("")
        return path

    def step(self, step: Mapping[str, Any]) -> None:
        """Run one step if its condition holds."""
        if not self._is_due(str(step.get("if", "success()"))):
            return
        if "uses" in step:
            self.ran.used.append(step["uses"])
            return
        assert step["shell"] == "bash", "a composite action names the shell of each step"
        assert "${{" not in step["run"], "what others name would be executed"
        outputs = self._file("output")
        own = {name: self.filled(str(value)) for name, value in step.get("env", {}).items()}
        added = self._path.read_text().split()
        env = {**self._env, **own, "GITHUB_OUTPUT": str(outputs)}
        env["PATH"] = os.pathsep.join([*reversed(added), env["PATH"]])
        script = self._scratch / "step.sh"
        script.write_text(step["run"])
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self._workspace,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        self.ran.steps.append(step["name"])
        self.ran.log += ended.stdout
        self.ran.summary = self._summary.read_text()
        self.ran.has_failed |= ended.returncode != 0
        if "id" in step:
            self.known["steps"][step["id"]] = {"outputs": read_outputs(outputs.read_text())}

    def _is_due(self, condition: str) -> bool:
        found = EXPRESSION.fullmatch(condition.strip())
        text = found[1] if found else condition
        if not any(name in text for name in STATUS_FUNCTIONS):
            text = f"success() && ({text})"
        return bool(self.value(text))

    def filled(self, text: str) -> str:
        """Return the text with its `${{ … }}` expressions replaced by their values."""
        return EXPRESSION.sub(lambda found: str(self.value(found[1])), text)

    def value(self, text: str) -> Any:
        """Evaluate an expression."""
        tokens: list[str] = []
        at = 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            assert found, f"no expression known here: {text!r}"
            tokens.append(found[1])
            at = found.end()
        value = self._either(tokens)
        assert not tokens, f"more than an expression: {text!r}"
        return value

    def _either(self, tokens: list[str]) -> Any:
        value = self._both(tokens)
        while tokens[:1] == ["||"]:
            tokens.pop(0)
            other = self._both(tokens)
            value = value or other
        return value

    def _both(self, tokens: list[str]) -> Any:
        value = self._compared(tokens)
        while tokens[:1] == ["&&"]:
            tokens.pop(0)
            other = self._compared(tokens)
            value = value and other
        return value

    def _compared(self, tokens: list[str]) -> Any:
        value = self._single(tokens)
        if tokens and tokens[0] in ("==", "!="):
            is_equal = tokens.pop(0) == "=="
            return (value == self._single(tokens)) is is_equal
        return value

    def _single(self, tokens: list[str]) -> Any:
        token = tokens.pop(0)
        if token == "!":
            return not self._single(tokens)
        if token == "(":
            value = self._either(tokens)
            assert tokens.pop(0) == ")"
            return value
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token in STATUS_FUNCTIONS:
            return {"success()": not self.ran.has_failed, "failure()": self.ran.has_failed}.get(
                token, token == "always()"
            )
        found: Any = self.known
        for part in token.split("."):
            found = found.get(part, "") if isinstance(found, Mapping) else ""
        return found


def read_outputs(text: str) -> dict[str, str]:
    """Parse a GITHUB_OUTPUT file: `name=value` lines and `name<<MARK` blocks."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, mark, end = line.partition("<<")
        if mark and "=" not in name:
            value = []
            while (part := next(lines)) != end:
                value.append(part)
            found[name] = "\n".join(value)
        else:
            name, _, found[name] = line.partition("=")
    return found


def commands_of(log: str) -> list[str]:
    """Return the lines of a log that the runner would execute as workflow commands.

    Skips sections between `::stop-commands::TOKEN` and `::TOKEN::`, and fails if a section is not closed.
    """
    found, token = [], None
    for line in log.splitlines():
        if token:
            token = None if line.strip() == f"::{token}::" else token
        elif line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif line.lstrip().startswith(("::", "##[")):
            found.append(line)
    assert token is None, "commands are not heeded any more"
    return found


def path_with(*commands: Path) -> str:
    """Return a PATH that starts with the folders of these commands, then this interpreter's, then the system's."""
    return os.pathsep.join(
        [*(str(one.parent) for one in commands), str(Path(sys.executable).parent), os.defpath]
    )
