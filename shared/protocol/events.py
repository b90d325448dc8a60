"""Events of the protocol: as graph hosts store them in a run's log, and as they are known to whoever filters them.

A stored one has a name that begins with MARK, then JSON: method, namespace, the tail of its id and the name of a
custom event. Its data are the parameters that clients get. Nobody but the client reads them.
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
from shared.protocol import position

# Few heads differ, and each is read again for every stream of its thread. A custom event's name may be long.
REMEMBERED_HEADS, MOST_REMEMBERED = 1024, 512

Head = tuple[str, Sequence[str], str, str | None]


@dataclass(frozen=True, slots=True)
class ProtocolEvent:
    """One event of a thread; `name` is that of a custom one, `params` JSON.

    One that stands in a log is the same for all readers in a process, and so are its `forms` on the wire.
    """

    seq: int
    id: str
    method: str
    namespace: Sequence[str]
    name: str | None
    params: bytes
    forms: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    def form(self, name: str, make: Callable[[ProtocolEvent], bytes]) -> bytes:
        """This form of it, made once."""
        found = self.forms.get(name)
        if found is None:
            found = self.forms[name] = make(self)
        return found


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person who looks at a stream may want to know; clients do not see it."""

    text: str


EXPIRED = Note("history expired")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a stream ends."""

    code: str
    message: str


Item = ProtocolEvent | Note | Failure


def is_stored(name: str) -> bool:
    """Whether a log's event of this name is the protocol's."""
    return name.startswith(MARK)


def stored_head(name: str) -> Head:
    """Method, namespace, the tail of the id, and the name of a custom event."""
    return _known_head(name) if len(name) <= MOST_REMEMBERED else _head(name)


def _head(name: str) -> Head:
    method, namespace, tail, custom = orjson.loads(name[len(MARK) :])
    return method, tuple(namespace), tail, custom


_known_head = lru_cache(REMEMBERED_HEADS)(_head)


def stored(event: Event, run_id: UUID, run: int) -> ProtocolEvent:
    """An event of the log of a run, which is the thread's run of that number."""
    found: ProtocolEvent = event.once("protocol", lambda: _stored(event, run_id, run))
    return found


def _stored(event: Event, run_id: UUID, run: int) -> ProtocolEvent:
    method, namespace, tail, custom = stored_head(event.name)
    id = f"synth:{run_id}:{tail}" if tail else f"{run_id}:{event.seq}"
    return ProtocolEvent(position.seq(run, event.seq), id, method, namespace, custom, event.data)


def made(
    run: Any, event: int, method: str, tail: str, data: Mapping[str, Any], at: datetime | None
) -> ProtocolEvent:
    """An event of the root's that stands in no log; `run` is a row of one, and `at` None means now."""
    milliseconds = round((at or datetime.now(UTC)).timestamp() * 1000)
    params = {"namespace": [], "timestamp": milliseconds, "data": data}
    id = f"synth:{run.run_id}:{tail}"
    return ProtocolEvent(position.seq(run.created_seq, event), id, method, (), None, dumps(params).encode())
