"""Calls of user code: from a caller to a graph host of the revision, and the answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID, uuid4

import gevent
import orjson
import pytest

from shared.errors import HostError, RunyardError, Unanswered, Unavailable
from shared.graph_queries import Question
from shared.hosts import pending_calls
from shared.infra import redis
from tests.support.greened import within
from tests.support.user_code_hosts import Scene, scene
from tests.support.waiting import until
from workers.graph_host import frames
from workers.runner import graph_queries
from workers.runner.graph_queries import _Query
from workers.runner.host_pool import HostPool


def waiting(s: Scene) -> int:
    return redis.client().llen(pending_calls.list_of(pending_calls.CALL, s.revision))


def outcome_of_a_call(s: Scene, seconds: float) -> type[Exception] | None:
    try:
        s.call("greet", seconds)
    except RunyardError as error:
        return type(error)
    return None


@within(scene)
def test_a_call_is_answered_by_a_host_that_is_started_for_it(s: Scene) -> None:
    answer = orjson.loads(s.call("greet", text="hi"))

    assert answer["asked"] == {"op": "greet", "text": "hi"}
    assert s.notified == [s.revision]


@within(scene)
def test_a_call_finds_a_host_that_is_ready_without_a_notification(s: Scene) -> None:
    s.pool.warm(s.revision)
    answers = [orjson.loads(s.call("greet", number=number)) for number in range(20)]

    assert [answer["asked"]["number"] for answer in answers] == list(range(20))
    assert s.notified == []
    assert s.noted().count("started") == 1


@within(scene)
def test_calls_at_once_each_get_their_own_answer(s: Scene) -> None:
    asked = [gevent.spawn(s.call, "greet", number=number) for number in range(300)]
    answers = [orjson.loads(one.get(timeout=60)) for one in asked]

    assert [answer["asked"]["number"] for answer in answers] == list(range(300))


@within(scene)
def test_a_call_whose_host_dies_is_answered_by_another_once(s: Scene) -> None:
    s.call("die once")

    assert s.noted() == ["started", "die once", "started", "die once"]

    with pytest.raises(HostError, match="was killed by SIGKILL"):
        s.call("die")

    assert s.noted().count("die") == 2


@within(scene)
def test_a_call_that_gets_no_answer_in_time_or_one_that_cannot_be_read_says_so(s: Scene) -> None:
    with pytest.raises(Unanswered):
        s.call("silent", seconds=0.5)
    with pytest.raises(HostError):
        s.call("nonsense")

    assert s.call("greet")


@within(scene, part="cannot load")
def test_a_host_that_does_not_start_is_no_answer_at_once(s: Scene) -> None:
    with pytest.raises(Unavailable, match="no such file"):
        s.call("greet")


@within(scene)
def test_a_call_that_no_runner_takes_is_taken_back(s: Scene) -> None:
    s.is_reached = False
    with pytest.raises(Unavailable):
        s.call("greet", start_seconds=0.1)

    assert s.notified
    assert not list(redis.client().scan_iter("runyard:user-code:*"))


@within(scene)
def test_a_runner_that_drains_takes_no_call_and_ends_those_it_has(s: Scene) -> None:
    s.pool.warm(s.revision)
    s.call("greet")
    os.kill(next(s.pool.all()).pid, signal.SIGSTOP)
    begun = gevent.spawn(s.call, "greet", number=1)
    until(lambda: any(host.occupants for host in s.pool.all()))
    s.user_code.drain()
    late = gevent.spawn(s.call, "greet", number=2)
    until(lambda: waiting(s) == 1)
    os.kill(next(s.pool.all()).pid, signal.SIGCONT)

    assert orjson.loads(begun.get(timeout=30))["asked"]["number"] == 1
    assert not late.ready()
    late.kill()
    assert waiting(s) == 0


@within(scene)
def test_a_host_that_stands_still_does_not_hold_up_calls_of_others(s: Scene) -> None:
    s.call("greet")
    frozen = next(s.pool.all()).pid
    other = uuid4()
    s.call("greet", revision=other)
    os.kill(frozen, signal.SIGSTOP)
    stuck = [gevent.spawn(outcome_of_a_call, s, seconds=5) for _ in range(20)]
    until(lambda: any(len(host.occupants) >= 10 for host in s.pool.all()))

    s.call("greet", revision=other)
    assert not any(one.ready() for one in stuck)
    assert [one.get(timeout=30) for one in stuck] == [Unanswered] * 20


@within(scene)
def test_what_waits_in_redis_does_not_show_what_clients_sent(s: Scene) -> None:
    s.is_reached = False
    one = gevent.spawn(s.call, "greet", secret="open sesame")
    until(lambda: waiting(s) == 1)
    where = pending_calls.list_of(pending_calls.CALL, s.revision)
    stored = cast("list[bytes]", redis.client().lrange(where, 0, -1))

    assert list(redis.client().scan_iter("*")) == [where.encode()]
    assert len(stored) == 1
    assert b"sesame" not in stored[0]
    one.kill()


# A thread query whose host sends a request that the runner cannot answer


QUESTION = Question(UUID(int=1), UUID(int=2), "default", UUID(int=3), {"op": "state"})


class AskingHost:
    """A pool with one host that answers each call with a request of its own and never with a result."""

    died = None

    def __init__(self, ask: bytes) -> None:
        self._ask = ask

    def acquire(self, revision_id: UUID) -> AskingHost:
        return self

    def enter(self, id: bytes, guest: Any, body: bytes, *, kind: int) -> None:
        receive: Callable[[int, bytes], None] = guest.received
        receive(frames.ASK, frames.pack([self._ask]))

    def leave(self, id: bytes) -> None:
        """Do nothing: the host keeps no state of a call."""


def test_what_cannot_be_replied_to_ends_the_question_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_queries, "PATIENCE_SECONDS", 1)
    hosts = cast("HostPool", AskingHost(b'{"ask":1}'))
    with pytest.raises(KeyError, match="op"):
        _Query(hosts, UUID(int=4), QUESTION).answer()
