"""Events of the protocol, as graph hosts store them in a run's log and as filters see them.

The name of a stored event is MARK, followed by JSON: method, namespace, the tail of the event's id, and the name of a
custom event. The data are the parameters for clients. The service itself does not read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import orjson

from shared.eventlog.events import MARK, Event
from shared.infra.postgres import dumps

# Parsed heads are cached: there are few distinct heads, and every stream of a thread parses each of them again. Longer
# names are not cached, because the name of a custom event may have any length.
REMEMBERED_HEADS, MOST_REMEMBERED = 1024, 512

Head = tuple[str, Sequence[str], str, str | None]


EVENT_BITS = 26
NO_EVENT = 0  # before the first event of a run
FIRST_EVENT = 1  # the start of a run, whichever attempt wrote it
LAST_EVENT = (1 << EVENT_BITS) - 1  # the end of a run, whether or not its log still exists


def event_number(run: int, event: int = NO_EVENT) -> int:
    """Return the number of an event in its thread, from the run's number in the thread and the event's in the log.

    The default is the number before all events of the run.
    """
    return run << EVENT_BITS | min(event, LAST_EVENT)


def split_number(number: int) -> tuple[int, int]:
    """Return the number of the run and the number of the event in its log."""
    return number >> EVENT_BITS, number & LAST_EVENT


@dataclass(frozen=True, slots=True)
class ProtocolEvent:
    """An event of a thread. `name` is the name of a custom event, `params` is JSON.

    All readers of a process share the event of a log, and its serialized `forms`.
    """

    seq: int
    id: str
    method: str
    namespace: Sequence[str]
    name: str | None
    params: bytes
    forms: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    def form(self, name: str, make: Callable[[ProtocolEvent], bytes]) -> bytes:
        """Return the named form of the event, which `make` creates on the first call."""
        form = self.forms.get(name)
        if form is None:
            form = self.forms[name] = make(self)
        return form


@dataclass(frozen=True, slots=True)
class Note:
    """A message for a person who inspects a stream. Clients ignore it."""

    text: str


EXPIRED = Note("history expired")


@dataclass(frozen=True, slots=True)
class Failure:
    """The error with which a stream ends."""

    code: str
    message: str


Item = ProtocolEvent | Note | Failure


def is_stored(name: str) -> bool:
    """Return whether a log's event with this name belongs to the protocol."""
    return name.startswith(MARK)


def stored_head(name: str) -> Head:
    """Parse the name of a stored event into method, namespace, tail of the id, and name of a custom event."""
    return _known_head(name) if len(name) <= MOST_REMEMBERED else _head(name)


def _head(name: str) -> Head:
    method, namespace, tail, custom = orjson.loads(name[len(MARK) :])
    return method, tuple(namespace), tail, custom


_known_head = lru_cache(REMEMBERED_HEADS)(_head)


def stored(event: Event, run_id: UUID, run: int) -> ProtocolEvent:
    """Return the protocol event of a log's event. `run` is the number of the run in its thread."""
    return event.once("protocol", lambda: _stored(event, run_id, run))


def _stored(event: Event, run_id: UUID, run: int) -> ProtocolEvent:
    method, namespace, tail, custom = stored_head(event.name)
    id = f"synth:{run_id}:{tail}" if tail else f"{run_id}:{event.seq}"
    return ProtocolEvent(event_number(run, event.seq), id, method, namespace, custom, event.data)


def synthesized(
    run: Any, event: int, method: str, tail: str, data: Mapping[str, Any], at: datetime | None
) -> ProtocolEvent:
    """Return an event of the root graph that is not in a log. `run` is the run's row. `at` None means now."""
    milliseconds = round((at or datetime.now(UTC)).timestamp() * 1000)
    params = {"namespace": [], "timestamp": milliseconds, "data": data}
    id = f"synth:{run['run_id']}:{tail}"
    return ProtocolEvent(
        event_number(run["created_seq"], event), id, method, (), None, dumps(params).encode()
    )
