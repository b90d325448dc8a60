"""Readers of one process share each event: it is parsed and rendered once, regardless of the number of readers."""

from __future__ import annotations

from uuid import uuid4

from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import TextMessage

from shared.eventlog.events import Event
from shared.protocol import events
from web.http import sse
from web.http.websocket import text_frame


def test_a_stored_event_is_read_once_for_all_readers_and_each_form_made_once() -> None:
    event, run_id = Event(3, 2, '~["values",[],"",null]', b'{"a":1}'), uuid4()
    first = events.stored(event, run_id, 1)
    assert events.stored(event, run_id, 1) is first
    assert first.id == f"{run_id}:3"

    made = events.stored(Event(3, 2, '~["values",[],"",null]', b"{}"), uuid4(), 1)
    asked: list[str] = []

    def render(event: events.ProtocolEvent) -> bytes:
        asked.append(event.method)
        return b"rendered"

    assert {made.form("one", render), made.form("one", render), made.form("other", render)} == {b"rendered"}
    assert asked == ["values", "values"]


def test_a_frame_of_a_stream_depends_on_its_name_and_id() -> None:
    event = Event(3, 2, "messages|a", b"{}")
    frames = [
        sse.encode(event, name, with_id=with_id)
        for name in ("messages", "messages|a")
        for with_id in (True, False)
    ]
    assert len(set(frames)) == 4
    assert frames[0] == b"event: messages\r\ndata: {}\r\nid: 3\r\n\r\n"


def test_frames_of_all_lengths_are_those_of_the_library() -> None:
    for size in (0, 1, 125, 126, 65_535, 65_536, 200_000):
        text = b"x" * size
        assert text_frame(text) == Connection(ConnectionType.SERVER).send(TextMessage(data=text.decode()))


def test_a_head_says_what_the_event_is() -> None:
    assert events.stored_head('~["lifecycle",["a:1","b"],"lc|a:1|b|started",null]') == (
        "lifecycle", ("a:1", "b"), "lc|a:1|b|started", None,
    )  # fmt: skip


def test_heads_that_come_again_are_read_once_and_long_ones_not_kept() -> None:
    head = '~["custom",["once:1"],"","progress"]'
    assert events.stored_head(head) is events.stored_head(head)
    kept = events._known_head.cache_info().currsize
    long = f'~["custom",[],"","{"x" * 1_000}"]'
    assert events.stored_head(long)[3] == "x" * 1_000
    assert events._known_head.cache_info().currsize == kept
