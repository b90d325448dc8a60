"""A fake of GitHub's API for comments on pull requests, limited to the calls of an action."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flask import Flask, Response, abort, jsonify, request

from tests.support.outside import serving

BOT = "github-actions[bot]"


@dataclass
class GitHub:
    """State of the fake: tokens with their logins, and the comments."""

    url: str = ""
    writers: dict[str, str] = field(default_factory=lambda: {"workflow-token": BOT})
    comments: list[dict[str, Any]] = field(default_factory=list)
    fails: int = 0  # number of calls that are answered with 502 first

    def add(self, number: int, body: str, login: str) -> dict[str, Any]:
        made = {"id": len(self.comments) + 1, "issue": number, "body": body, "user": {"login": login}}
        self.comments.append(made)
        return made

    def by(self, login: str) -> list[str]:
        return [row["body"] for row in self.comments if row["user"]["login"] == login]

    def app(self) -> Flask:
        app = Flask("github")

        @app.before_request
        def look() -> None:
            if self.fails:
                self.fails -= 1
                abort(502)

        def writer() -> str:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            return self.writers.get(token) or abort(403)

        @app.get("/user")
        def user() -> Response:
            login = writer()
            if login == BOT:
                abort(403)  # GitHub answers "Resource not accessible by integration"
            return jsonify(login=login)

        @app.get("/repos/acme/agents/issues/<int:number>/comments")
        def listed(number: int) -> Response:
            size, page = int(request.args["per_page"]), int(request.args["page"])
            rows = [row for row in self.comments if row["issue"] == number]
            return jsonify(rows[size * (page - 1) : size * page])

        @app.post("/repos/acme/agents/issues/<int:number>/comments")
        def made(number: int) -> tuple[Response, int]:
            return jsonify(self.add(number, request.get_json()["body"], writer())), 201

        @app.patch("/repos/acme/agents/issues/comments/<int:comment_id>")
        def changed(comment_id: int) -> Response:
            writer()
            row = self.comments[comment_id - 1]
            row["body"] = request.get_json()["body"]
            return jsonify(row)

        return app


@contextmanager
def github() -> Iterator[GitHub]:
    """Run a GitHub whose only writer is a workflow's token."""
    made = GitHub()
    with serving(made.app()) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made
