"""Event filters of a subscription: by channel, namespace and depth."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
from langgraph_sdk.stream.subscription import namespace_matches
from marshmallow import ValidationError

from shared.protocol.events import Failure, ProtocolEvent
from web.deployment_api.protocols.v2_events import (
    MAX_BYTES,
    REMEMBERED,
    Subscribed,
    Subscription,
    encode_event,
    encode_failure,
)


def event(method: str = "values", namespace: tuple[str, ...] = (), name: str | None = None) -> ProtocolEvent:
    return ProtocolEvent(7, "id", method, namespace, name, b"{}")


def subscription(*channels: str, **more: object) -> Subscription:
    return Subscription.of({"channels": list(channels), **more})


@pytest.mark.parametrize(
    ("channel", "wanted", "unwanted"),
    [
        ("values", event("values"), event("updates")),
        ("input", event("input.requested"), event("lifecycle")),
        ("input", event("input.answered"), event("values")),
        ("custom", event("custom", name="a"), event("tools")),
        ("custom", event("custom"), event("values", name="a")),
        ("custom:a", event("custom", name="a"), event("custom", name="b")),
        ("custom:a", event("custom", name="a"), event("custom")),
    ],
)  # fmt: skip
def test_events_go_by_their_channel(channel: str, wanted: ProtocolEvent, unwanted: ProtocolEvent) -> None:
    assert subscription("tasks", channel).matches(wanted)
    assert not subscription("tasks", channel).matches(unwanted)


NAMESPACES = [(), ("a:1",), ("a:2",), ("b",), ("a:1", "c:3"), ("a:1", "c:3", "d:4")]
CHOICES = [None, [], [[]], [["a"]], [["a:1"]], [["a", "c"]], [["a:1", "c:9"]], [["b"], ["a:2"]], [["a:1:2"]]]


@pytest.mark.parametrize("depth", [None, 0, 1, 2])
@pytest.mark.parametrize("chosen", CHOICES)
def test_namespaces_go_by_the_clients_own_rule(chosen: list[list[str]] | None, depth: int | None) -> None:
    asked = subscription("values", namespaces=chosen, depth=depth)
    for namespace in NAMESPACES:
        expected = namespace_matches(list(namespace), chosen, depth)
        assert asked.matches(event(namespace=namespace)) is expected, namespace


def test_a_long_choice_is_looked_through_once_for_each_namespace() -> None:
    class Counted(list[list[str]]):
        looks = 0

        def __iter__(self) -> Iterator[list[str]]:
            self.looks += 1
            return super().__iter__()

    chosen = Counted([["a:2"], ["b"]])
    asked = subscription("values", namespaces=chosen)
    for _ in range(3):
        assert [asked.matches(event(namespace=namespace)) for namespace in NAMESPACES] == [
            False, False, True, True, False, False,
        ]  # fmt: skip
    assert chosen.looks == len(NAMESPACES)
    assert not any(asked.matches(event(namespace=(f"a:{n}",))) for n in range(3, 3 * REMEMBERED))
    assert chosen.looks < 4 * REMEMBERED


def test_a_choice_has_a_length() -> None:
    many = [["agent:" + "x" * 60]] * 1000
    with pytest.raises(ValidationError, match="at most"):
        Subscribed().load({"channels": ["values"], "namespaces": many})
    with pytest.raises(ValidationError, match="at most"):
        Subscribed().load({"channels": ["custom:" + "x" * MAX_BYTES]})
    Subscribed().load({"channels": ["values"], "namespaces": many[:500]})


def test_who_wants_content_does_not_only_wait() -> None:
    assert subscription("lifecycle", "input").waits
    assert subscription("lifecycle").waits
    assert not subscription("lifecycle", "input", "values").waits


def test_an_event_is_one_line_of_json_and_a_failure_has_no_id() -> None:
    whole = ProtocolEvent(7, 'a"|b', "custom", ("a",), "n", b'{"namespace":["a"],"data":{"x":"\\n"}}')
    line = encode_event(whole)
    assert b"\n" not in line
    assert orjson.loads(line) == {
        "type": "event",
        "event_id": 'a"|b',
        "seq": 7,
        "method": "custom",
        "params": {"namespace": ["a"], "data": {"x": "\n"}},
    }

    expected = {"type": "error", "id": None, "error": "no_such_run", "message": "it is gone"}
    assert orjson.loads(encode_failure(Failure("no_such_run", "it is gone"))) == expected
