"""A receiver of webhooks outside the platform, on a loopback port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from flask import Flask, Response, request

from tests.support.outside import serving


@dataclass(frozen=True)
class Call:
    """A received request."""

    headers: dict[str, str]
    body: bytes
    path: str  # with the query string

    @property
    def document(self) -> Any:
        return orjson.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["Webhook-Id"]


@dataclass
class Receiver:
    """Answers with these statuses in order and repeats the last, but only while `answers` is set."""

    statuses: list[int] = field(default_factory=lambda: [200])
    calls: list[Call] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def calls_of(self, run_id: str) -> list[Call]:
        return [call for call in self.calls if call.document["run_id"] == run_id]

    def app(self) -> Flask:
        app = Flask("receiver")

        @app.post("/hook")
        @app.post("/d/<deployment>/hook")
        def receive(deployment: str = "") -> Response:
            path = request.full_path.removesuffix("?")
            self.calls.append(Call(dict(request.headers), request.get_data(), path))
            self.answers.wait(60)
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            return Response("a receiver's own words", status, {"Location": "/elsewhere"})

        return app


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.answers.set()
    with serving(receiver.app()) as port:
        receiver.url = f"http://127.0.0.1:{port}/hook"
        yield receiver
        receiver.answers.set()
