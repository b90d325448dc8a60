"""Calls of user code: from a caller to a graph host of the revision, and the answer."""

from __future__ import annotations

import os
import signal
from typing import Any, cast
from uuid import UUID, uuid4

import gevent
import orjson
import pytest

from shared.errors import HostError, HostUnusable, Invalid, TooLarge, Unanswered, Unavailable
from shared.hosts import pending_calls
from shared.hosts.channel import Endpoint
from shared.hosts.pending_calls import HostCall, PendingCall, RunnerLost
from shared.infra import redis
from tests.support.greened import World, constants, greened, within
from tests.support.user_code_hosts import Scene, scene
from tests.support.waiting import until
from workers.runner import host_health
from workers.runner.quarantine import DEFAULT_GROUP

MIB = 1024 * 1024


def waiting(s: Scene) -> int:
    return redis.client().llen(pending_calls.list_of(pending_calls.CALLS, s.revision))


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


@within(scene)
def test_a_call_of_a_scorer_is_in_a_host_without_other_calls(s: Scene) -> None:
    def pid(op: str, **details: Any) -> int:
        return orjson.loads(s.call(op, **details))["pid"]

    together = pid("score", is_alone=False)

    assert pid("score", is_alone=False) == together
    assert len({together, pid("greet"), pid("score", is_alone=True), pid("score", is_alone=True)}) == 4


@within(scene)
def test_a_runner_with_a_host_for_a_scorer_alone_takes_its_calls(s: Scene) -> None:
    s.call("score", is_alone=False)
    (ordinary,) = (host for host in s.pool.all() if host.group == DEFAULT_GROUP)
    os.kill(ordinary.pid, signal.SIGKILL)
    until(lambda: ordinary.died is not None)
    s.notified.clear()
    s.call("score", is_alone=False)

    assert s.notified == []
    assert s.noted().count("started") == 2


@within(scene, part="cannot load")
def test_a_host_that_does_not_start_is_no_answer_at_once(s: Scene) -> None:
    with pytest.raises(HostUnusable, match="no such file"):
        s.call("greet")


@within(scene)
def test_a_call_that_no_runner_takes_is_taken_back(s: Scene) -> None:
    s.is_reached = False
    with pytest.raises(Unavailable):
        s.call("greet", start_seconds=0.1)

    assert s.notified
    assert not list(redis.client().scan_iter("runyard:hosts:*"))


@within(scene)
def test_a_runner_that_drains_takes_no_call_and_ends_those_it_has(s: Scene) -> None:
    s.pool.warm(s.revision)
    s.call("greet")
    os.kill(next(s.pool.all()).pid, signal.SIGSTOP)
    begun = gevent.spawn(s.call, "greet", number=1)
    until(lambda: any(host.occupants for host in s.pool.all()))
    s.host_calls.drain()
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
    with constants(host_health, STALLED_SECONDS=600.0):  # a late call would get another host
        stuck = [gevent.spawn(s.call, "greet", seconds=60, number=number) for number in range(20)]
        until(lambda: any(len(host.occupants) == len(stuck) for host in s.pool.all()))

        s.call("greet", revision=other)
        assert not any(one.ready() for one in stuck)

        os.kill(frozen, signal.SIGCONT)
        answers = [orjson.loads(one.get(timeout=60)) for one in stuck]
        assert [answer["asked"]["number"] for answer in answers] == list(range(20))


@within(scene)
def test_what_waits_in_redis_does_not_show_what_clients_sent(s: Scene) -> None:
    s.is_reached = False
    one = gevent.spawn(s.call, "greet", secret="open sesame")
    until(lambda: waiting(s) == 1)
    where = pending_calls.list_of(pending_calls.CALLS, s.revision)
    stored = cast("list[bytes]", redis.client().lrange(where, 0, -1))

    assert list(redis.client().scan_iter("*")) == [where.encode()]
    assert len(stored) == 1
    assert b"sesame" not in stored[0]
    one.kill()


@within(scene)
def test_a_large_answer_arrives_whole_and_leaves_nothing_in_redis(s: Scene) -> None:
    for size in (300_000, 40 * MIB):
        answer = s.call("large", size=size)
        assert len(answer) == size + 2
        assert not list(redis.client().scan_iter("runyard:hosts:answer:*"))


@within(scene)
def test_a_refusal_of_a_host_is_raised_as_its_error(s: Scene) -> None:
    for kind, error, text in (
        ("invalid", Invalid, "why"),
        ("too_large", TooLarge, "why"),
        ("failed", HostError, "Oops: why"),
        ("unknown", HostError, "Oops: why"),
    ):
        with pytest.raises(error) as raised:
            s.call("refuse", refused={"kind": kind, "error": "Oops", "message": "why"})
        assert raised.value.message == text
    with pytest.raises(HostError, match="cannot be read"):
        s.call("refuse", refused=[])


@within(scene)
def test_a_call_without_a_thread_may_look_up_nothing_and_none_may_write(s: Scene) -> None:
    put = {"ask": 1, "op": "store", "ops": [{"op": "put"}]}
    of_a_thread = {"thread_id": UUID(int=1)}
    for ask, limits, error in (
        (put, {}, "without a thread"),
        ({"ask": 1, "op": "get_tuple"}, {}, "without a thread"),
        (put, of_a_thread, "may not write"),
        ({"ask": 1, "op": "copy"}, of_a_thread, "may not copy"),
    ):
        assert error in orjson.loads(s.call("look up", ask=ask, limits=limits))["error"]


@within(scene)
def test_a_lookup_that_cannot_be_answered_ends_the_call_at_once(s: Scene) -> None:
    with pytest.raises(HostError, match="internal error"):
        s.call("look up", ask={"ask": 1}, limits={"thread_id": UUID(int=1)})


@within(scene)
def test_a_call_that_only_needs_a_host_does_not_enter_it(s: Scene) -> None:
    assert s.call("ready") == b"{}"
    assert s.noted() == ["started"]


@within(scene)
def test_a_total_time_includes_the_wait_for_a_host(s: Scene) -> None:
    s.is_reached = False
    with pytest.raises(Unanswered, match="no runner of the pool 'default'"):
        s.call("greet", limits={"total_seconds": 0.5, "start_seconds": 24 * 3600.0})

    assert waiting(s) == 0


@within(scene)
def test_a_call_whose_answer_cannot_arrive_is_sent_again_but_an_update_is_not(s: Scene) -> None:
    s.pool.warm(s.revision)
    for limits, error, sent in (({}, Unavailable, 2), ({"is_repeatable": False}, Unanswered, 1)):
        s.note.write_text("")
        call = gevent.spawn(s.call, "silent", limits=limits)
        for times in range(1, sent + 1):
            until(lambda times=times: s.noted().count("silent") == times)
            redis.client().client_kill_filter(_type="pubsub")
        with pytest.raises(error, match="connection to the event bus was lost"):
            call.get(timeout=10)
        assert s.noted().count("silent") == sent


@greened
def test_an_update_whose_caller_has_ended_is_not_executed(world: World) -> None:
    with (
        scene(world) as s,
        constants(pending_calls, UNTAKEN_SECONDS=0.1, SLACK_SECONDS=0.3, GONE_SECONDS=0.3),
    ):
        s.pool.warm(s.revision)
        caller = Endpoint("nobody", uuid4().bytes)
        for is_repeatable in (True, False):
            request = HostCall(
                deployment_id=UUID(int=1),
                revision_id=s.revision,
                pool="default",
                document={"op": f"{is_repeatable=}"},
                is_repeatable=is_repeatable,
            )
            with pytest.raises(RunnerLost):
                pending_calls.send(pending_calls.CALLS, PendingCall(caller, request), gevent.sleep)

        assert s.noted() == ["started", "is_repeatable=True"]
