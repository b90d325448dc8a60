"""A scripted control plane for tests of its clients: real HTTP, prepared answers, recorded requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]


@dataclass
class Held:
    """Server-sent events whose stream stays open until the test releases it."""

    first: bytes
    released: threading.Event = field(default_factory=threading.Event)


D, R = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
BUILD_LOG = f"POST /v1/projects/{D}/revisions/{R}/build_logs"
REVISION = f"GET /v2/deployments/{D}/revisions/{R}"
STREAM = f"GET /v2/deployments/{D}/revisions/{R}/stream"


class ControlPlane(ThreadingHTTPServer):
    """HTTP server that returns the prepared answers of `METHOD /path` in order and repeats the last; otherwise 404.

    An answer is a status and a body: bytes or Held as server-sent events, None as an empty body, anything else as JSON.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[str] = []
        self.queries: list[str] = []
        self.bodies: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []
        self.more_headers: dict[str, str] = {}
        self.url = f"http://127.0.0.1:{self.server_port}"

    def body(self, what: str) -> Any:
        """Return the JSON body of the last request to this `METHOD /path`."""
        (at, *_) = [number for number, asked in enumerate(self.asked) if asked == what][::-1]
        return json.loads(self.bodies[at])

    def header(self, what: str, name: str) -> list[str | None]:
        """Return a header of each request to this `METHOD /path`, in order."""
        return [
            headers.get(name)
            for asked, headers in zip(self.asked, self.headers, strict=True)
            if asked == what
        ]


class Handler(BaseHTTPRequestHandler):
    server: ControlPlane

    def answer(self) -> None:
        what = f"{self.command} {self.path.partition('?')[0]}"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(what)
        self.server.queries.append(self.path.partition("?")[2])
        self.server.bodies.append(body)
        self.server.headers.append(dict(self.headers))
        answers = self.server.answers.get(what, [(404, {"detail": "Not Found"})])
        status, content = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(content, Held):
            self.hold(content)
            return
        is_stream = isinstance(content, bytes)
        data = content if is_stream else b"" if content is None else json.dumps(content).encode()
        self.send(status, "text/event-stream" if is_stream else "application/json", len(data))
        self.wfile.write(data)

    def hold(self, content: Held) -> None:
        self.send(200, "text/event-stream", None)
        self.wfile.write(content.first)
        self.wfile.flush()
        content.released.wait(30)

    def send(self, status: int, media: str, size: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media)
        if size is not None:
            self.send_header("Content-Length", str(size))
        for name, value in self.server.more_headers.items():
            self.send_header(name, value)
        self.end_headers()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, to keep the test's output readable."""


@contextmanager
def serving() -> Iterator[ControlPlane]:
    """Run a control plane while the block runs."""
    server = ControlPlane()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def events(*told: tuple[str, dict[str, Any]], first: int = 1) -> bytes:
    """Encode `(event, data)` pairs as server-sent events with ids that count from `first`."""
    return b"".join(
        f"event: {name}\r\ndata: {json.dumps(data)}\r\nid: {number}\r\n\r\n".encode()
        for number, (name, data) in enumerate(told, first)
    )


def status(word: str) -> tuple[str, dict[str, Any]]:
    return "status", {"status": word, "message": None}


def line(number: int, message: str, level: str = "INFO") -> dict[str, Any]:
    """Return a log line as the log endpoint has it."""
    return {"id": str(number), "timestamp": 1_700_000_000_000 + number, "level": level, "message": message}


def live(number: int, message: str) -> tuple[str, dict[str, Any]]:
    """Return a log line as the event stream has it."""
    stamp = f"2023-11-14T22:13:20.{number:03d}000+00:00"
    return "log", {"timestamp": stamp, "level": "INFO", "message": message}


def record(**more: Any) -> dict[str, Any]:
    """Return a deployment's record."""
    return {"id": D, "name": "app", "latest_revision_id": R, "active_revision_id": None, **more}


def deploy_answers(server: ControlPlane, end: str = "DEPLOYED") -> dict[str, list[Answer]]:
    """Return the answers of a first deploy. Its revision is built without a stream and ends with status `end`."""
    logs = [
        (200, {"logs": [line(1, "no such module", "ERROR")], "next_offset": "1"}),
        (200, {"logs": [], "next_offset": "1"}),
    ]
    return {
        "GET /v2/deployments": [(200, {"resources": [], "offset": 0})],
        "POST /v2/deployments": [(201, record())],
        f"POST /v2/deployments/{D}/upload-url": [
            (200, {"upload_url": f"{server.url}/put", "object_path": "o"})
        ],
        "PUT /put": [(200, None)],
        f"PATCH /v2/deployments/{D}": [(200, record())],
        REVISION: [
            (200, {"id": R, "status": "BUILDING"}),
            (503, {"detail": "a moment"}),
            (200, {"id": R, "status": end, "status_message": None}),
        ],
        BUILD_LOG: logs,
        f"GET /v2/deployments/{D}": [
            (200, record(active_revision_id=R, source_config={"custom_url": "http://there/d/app"}))
        ],
    }
