"""GitLab: jobs of a pipeline, run on this machine as its runner does, and a fake of its API for comments."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from flask import Flask, Response, abort, jsonify, request

from tests.support.outside import serving


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


@dataclass
class GitLab:
    """A fake of GitLab's API for comments on a merge request of the project 1. Its tokens are names of users."""

    url: str = ""
    notes: list[dict[str, Any]] = field(default_factory=list)

    def add(self, body: str, author: str) -> dict[str, Any]:
        note = {"id": len(self.notes) + 1, "body": body, "author": {"id": author}}
        self.notes.append(note)
        return note

    def app(self) -> Flask:
        app = Flask("gitlab")
        notes = "/api/v4/projects/1/merge_requests/<int:number>/notes"

        def user() -> str:
            return request.headers.get("PRIVATE-TOKEN") or abort(401)

        @app.get("/api/v4/user")
        def me() -> Response:
            return jsonify(id=user())

        @app.get(notes)
        def listed(number: int) -> Response:
            size, page = int(request.args["per_page"]), int(request.args["page"])
            return jsonify(self.notes[size * (page - 1) : size * page])

        @app.post(notes)
        def created(number: int) -> tuple[Response, int]:
            return jsonify(self.add(request.get_json()["body"], user())), 201

        @app.put(f"{notes}/<int:note_id>")
        def changed(number: int, note_id: int) -> Response:
            row = self.notes[note_id - 1]
            if row["author"]["id"] != user():
                abort(403)
            row["body"] = request.get_json()["body"]
            return jsonify(row)

        return app


@contextmanager
def gitlab() -> Iterator[GitLab]:
    fake = GitLab()
    with serving(fake.app()) as port:
        fake.url = f"http://127.0.0.1:{port}/api/v4"
        yield fake


def _expanded(value: str, env: Mapping[str, str]) -> str:
    return env.get(value[1:], "") if value.startswith("$") else value
