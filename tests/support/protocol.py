"""Both ends of protocol v2 in tests: a graph host that writes its events, and a reader of a thread's stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from sqlalchemy import text

from shared.eventlog import events
from shared.eventlog.events import END
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from tests.contract.conftest import Api
from tests.support.acting import Actor

HEARTBEAT = ": heartbeat"
ALL = (
    "values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom",
)  # fmt: skip
WAITING = ("lifecycle", "input")
AT = 1_700_000_000_000
RUN = 1 << 26  # distance between the sequence numbers of one run's events and the next run's
WHOLE = ["lifecycle running", "values", "lifecycle completed"]


class Host(Actor):
    """A runner that executes one run and writes events of protocol v2."""

    is_interrupted = False

    def show(
        self,
        method: str,
        data: Any,
        *,
        namespace: Sequence[str] = (),
        tail: str = "",
        name: str | None = None,
    ) -> None:
        head = orjson.dumps([method, namespace, tail, name]).decode()
        self.emit(f"~{head}", {"namespace": namespace, "timestamp": AT, "data": data})

    def ask(self, **questions: Any) -> None:
        """Publish these interrupts and end the run interrupted."""
        self.publish(**questions)
        self.rest(**questions)

    def publish(self, **questions: Any) -> None:
        """Write `input.requested` events to the log."""
        for id, value in questions.items():
            asked = {"interrupt_id": id, "payload": value, "value": value}
            self.show("input.requested", asked, tail=f"input||{id}")

    def rest(self, **questions: Any) -> None:
        """Store the end of the run, interrupted by these questions."""
        self.is_interrupted = True
        interrupts = {"task": [{"id": id, "value": value} for id, value in questions.items()]}
        self.finish({}, thread_status=ThreadStatus.INTERRUPTED, interrupts=interrupts)

    def end(self, status: str, output: Any = None) -> None:
        head: dict[str, Any] = {"run_id": str(self.run.run_id), "status": str(status)}
        if self.is_interrupted:
            head["interrupted"] = True
        self._append(events.payload(END, orjson.dumps({**head, "output": output})), final=True)

    def fail(self, error: str, message: str) -> None:
        self.finish(
            status=RunStatus.ERROR,
            thread_status=ThreadStatus.ERROR,
            error={"error": error, "message": message},
        )


class EventReader:
    """A reader of a thread's event stream. The frequent heartbeats of tests keep its reads from blocking."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def parts(self) -> Iterator[str]:
        """Yield each event frame and each comment as text."""
        for chunk in self._chunks:
            *whole, self._left = (self._left + chunk).split(b"\r\n\r\n")
            yield from (part.decode() for part in whole)

    def quiet(self) -> list[Any]:
        """Read until two heartbeats in a row. Returns events, and comments as text."""
        found, beats = [], 0
        for part in self.parts():
            beats = beats + 1 if part == HEARTBEAT else 0
            if beats == 2:
                return found
            if part != HEARTBEAT:
                found.append(parsed(part))
        return found

    def until(self, word: str) -> list[Any]:
        """Read up to an event for which `brief` returns this word."""
        found: list[Any] = []
        while brief(found[-1:]) != [word]:
            found += self.quiet()
        return found

    def until_end(self) -> list[Any]:
        """Read until the server closes the stream."""
        return [parsed(part) for part in self.parts() if part != HEARTBEAT]


def parsed(part: str) -> Any:
    """Parse an event and check its framing. Returns a comment as its text."""
    if part.startswith(":"):
        return part[2:]
    lines = dict(line.split(": ", 1) for line in part.split("\r\n"))
    event = orjson.loads(lines["data"])
    if event["type"] == "event":
        assert (lines["event"], lines["id"]) == (event["method"], str(event["seq"]))
        assert set(event) == {"type", "event_id", "seq", "method", "params"}
    return event


@contextmanager
def subscribed(api: Api, thread_id: str, channels: Sequence[str] = ALL, **more: Any) -> Iterator[EventReader]:
    body = {"channels": list(channels), **more}
    response = api.post(f"/threads/{thread_id}/stream/events", body, buffered=False)
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    yield EventReader(response.iter_encoded())
    response.close()


def replay(api: Api, thread_id: str, channels: Sequence[str] = ALL, **more: Any) -> list[Any]:
    """Open a stream and return what it replays."""
    with subscribed(api, thread_id, channels, **more) as reader:
        return reader.quiet()


def brief(events: Sequence[Any]) -> list[str]:
    """Return each event's method, with the word of a lifecycle event. Comments stay as they are."""
    return [
        event if isinstance(event, str)
        else f"{event['method']} {event['params']['data']['event']}" if event["method"] == "lifecycle"
        else event["method"]
        for event in events
    ]  # fmt: skip


def command(api: Api, thread_id: str, method: str, id: Any = 7, **params: Any) -> Any:
    """Send a command and return its answer, which may be an error of the protocol. Fails unless the status is 200."""
    body = {"id": id, "method": method, "params": params}
    response = api.post(f"/threads/{thread_id}/commands", body)
    assert response.status_code == 200, response.text
    return response.json


def started(api: Api, thread_id: str, **params: Any) -> Any:
    """Send `run.start` and return its answer. Fails unless the command succeeds."""
    answer = command(api, thread_id, "run.start", **{"assistant_id": "agent", "input": {"a": 1}, **params})
    assert answer["type"] == "success", answer
    return answer


def one_run(api: Api, thread_id: str, **params: Any) -> str:
    """Start a run by a command and complete it with one content event. Returns its id."""
    run_id = started(api, thread_id, **params)["result"]["run_id"]
    host = Host(run_id)
    host.show("values", {"n": 1})
    host.finish({"n": 1})
    return str(run_id)


def classic(api: Api, thread_id: str, **body: Any) -> str:
    return api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **body}).json["run_id"]


def stored_joined(run_id: str) -> Any:
    """Return `joined` of the run's row: the events that readers add to those that its creator requested."""
    with connection() as conn:
        return conn.execute(text("SELECT joined FROM run WHERE run_id = :id"), {"id": run_id}).scalar_one()
