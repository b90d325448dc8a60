"""Run jobs of a GitLab pipeline on this machine: their scripts are joined for a shell as GitLab's runner does."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass
class RanJob:
    """Result of running a job."""

    code: int
    log: str
    dotenv: dict[str, str]


class Pipeline:
    """A pipeline file and its jobs."""

    def __init__(self, path: Path) -> None:
        self.described: dict[str, Any] = yaml.safe_load(path.read_text())

    def job(self, name: str) -> dict[str, Any]:
        """Return a job, merged with the jobs that it extends."""
        own = self.described[name]
        base = self.job(own["extends"]) if "extends" in own else {}
        return {**base, **own}

    def run(self, name: str, folder: Path, env: Mapping[str, str]) -> RanJob:
        """Run a job in a checked-out repository with the pipeline's variables."""
        job = self.job(name)
        script = "\n".join(["set -e", *job.get("before_script", []), *job["script"]])
        variables = {
            key: _expanded(value, env)
            for key, value in {**self.described["variables"], **job.get("variables", {})}.items()
        }
        ended = subprocess.run(
            ["sh", "-c", script],
            cwd=folder,
            env={**variables, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        return RanJob(ended.returncode, ended.stdout, self._report(job, folder))

    def _report(self, job: Mapping[str, Any], folder: Path) -> dict[str, str]:
        named = job.get("artifacts", {}).get("reports", {}).get("dotenv")
        path = folder / named if named else None
        if path is None or not path.exists():
            return {}
        found = dict(line.split("=", 1) for line in path.read_text().splitlines())
        path.unlink()
        return found


def _expanded(value: str, env: Mapping[str, str]) -> str:
    return env.get(value[1:], "") if value.startswith("$") else value
