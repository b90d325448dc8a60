"""The pool of graph hosts: host selection, waiting for a slot, and eviction of idle hosts."""

from __future__ import annotations

import math
import os
import signal
from typing import Any
from uuid import UUID, uuid4

import gevent
import pytest
from gevent.event import AsyncResult

from shared.deployments.limits import HostLimits
from tests.support.greened import World, constants, greened, within
from tests.support.played_hosts import Occupant, Stage, is_alive, stage
from tests.support.waiting import until
from workers.runner import host_health, host_pool, quarantine
from workers.runner.host import Host
from workers.runner.host_pool import AcquireCancelled
from workers.runner.quarantine import ALONE, DEFAULT_GROUP, OFFLINE_REPLAY, ORDINARY, REPLAY


@within(stage, hosts_per_revision=2)
def test_the_least_busy_host_is_chosen(s: Stage) -> None:
    first = s.acquire()
    s.pool._request(s.revision, DEFAULT_GROUP).done.get()
    Occupant().enter(first)
    second = s.acquire()
    assert second is not first
    Occupant().enter(second)
    Occupant().enter(second)

    until(lambda: s.acquire() is first)  # a host that answers late on a busy machine comes last meanwhile


@within(stage)
def test_a_run_that_was_stopped_before_it_began_gets_no_host(s: Stage) -> None:
    s.acquire()
    stopped: AsyncResult = AsyncResult()
    stopped.set(None)

    with pytest.raises(AcquireCancelled):
        s.acquire(unless=stopped)


@within(stage, hosts_per_revision=2)
def test_a_busy_slow_host_gets_a_second_one(s: Stage) -> None:
    s.part = "slow"
    first = s.acquire()
    Occupant().enter(first)
    until(lambda: first.health.delay > host_pool.SLOW_SECONDS)
    s.part = "plays along"
    s.acquire()
    until(lambda: len(list(s.pool.all())) == 2)

    assert s.acquire() is not first


@greened
def test_runs_that_get_no_thread_in_their_host_go_to_another_unless_none_has_any(world: World) -> None:
    with stage(world, hosts_per_revision=2) as s:
        s.part = "has no threads"
        full = s.acquire()
        first, second = Occupant().enter(full), Occupant().enter(full)
        s.part = "plays along"
        until(lambda: len(list(s.pool.all())) == 2)
        until(lambda: set(s.pool.starved()) == {UUID(bytes=first.id), UUID(bytes=second.id)})

        full.leave(first.id)
        assert list(s.pool.starved()) == [UUID(bytes=second.id)]
        assert s.acquire() is not full

    with stage(world, hosts_per_revision=2) as s:
        s.part = "has no threads"
        occupant = Occupant().enter(s.acquire())
        until(lambda: len(list(s.pool.all())) == 2)
        until(lambda: all(host.health.queued for host in s.pool.all()))

        assert list(s.pool.starved()) == []
        assert not occupant.deaths


@within(stage, hosts_per_revision=1)
def test_a_revision_has_no_more_hosts_than_allowed(s: Stage) -> None:
    s.part = "slow"
    host = s.acquire()
    Occupant().enter(host)
    until(lambda: host.health.delay > host_pool.SLOW_SECONDS)
    for _ in range(3):
        s.acquire()

    assert s.starts == 1


@greened
def test_a_silent_host_gets_no_new_runs(world: World) -> None:
    with constants(host_health, STALLED_SECONDS=0.2), stage(world) as s:
        s.part = "silent"
        first = s.acquire()
        until(lambda: not first.is_healthy)
        s.part = "plays along"

        assert s.acquire() is not first
        until(lambda: any("blocked" in message for _, message, _ in s.lines))


@within(stage)
def test_a_run_may_have_a_host_of_its_own(s: Stage) -> None:
    shared = s.acquire()
    alone = s.acquire(group=quarantine.group(uuid4(), ALONE))
    occupant = Occupant().enter(alone)
    assert alone is not shared
    assert s.acquire() is shared

    alone.leave(occupant.id)
    until(lambda: not is_alive(alone.pid))
    assert not occupant.deaths


@within(stage, hosts_per_revision=1)
def test_dead_hosts_do_not_keep_live_ones_from_starting(s: Stage) -> None:
    s.pool._watcher.kill()  # the pool does not notice dead hosts by itself
    for _ in range(5):
        host = s.acquire()
        assert host.died is None
        os.kill(host.pid, signal.SIGKILL)
        until(lambda host=host: host.died)


@within(stage, max_hosts=2)
def test_the_host_used_longest_ago_is_evicted(s: Stage) -> None:
    revisions = [uuid4() for _ in range(3)]
    oldest, busy = s.acquire(revisions[0]), s.acquire(revisions[1])
    occupant = Occupant().enter(busy)
    s.acquire(revisions[2])

    until(lambda: not is_alive(oldest.pid))
    assert busy.died is None
    assert not occupant.deaths


@within(stage, max_hosts=2)
def test_runs_that_want_hosts_of_their_own_wait_for_slots_and_take_nobody_else_s(s: Stage) -> None:
    warm = [s.acquire(uuid4()), s.acquire(uuid4())]
    used: list[Host] = []

    def run_alone() -> Occupant:
        host = s.acquire(group=quarantine.group(uuid4(), ALONE))
        occupant = Occupant().enter(host)
        used.append(host)
        assert len([host for host in s.pool.all() if host.group != DEFAULT_GROUP]) <= 2
        until(lambda: occupant.frames)
        host.leave(occupant.id)
        return occupant

    alone = [gevent.spawn(run_alone) for _ in range(7)]
    gevent.joinall(alone, raise_error=True)

    assert len(set(used)) == 7
    assert not any(greenlet.value.deaths for greenlet in alone)
    assert [host.died for host in warm] == [None, None]


@greened
def test_who_waits_for_a_slot_gets_the_next_that_is_free_or_gives_up(world: World) -> None:
    with stage(world, max_hosts=1) as s:
        busy = s.acquire()
        occupant = Occupant().enter(busy)
        waiting = gevent.spawn(s.acquire, uuid4())
        gevent.idle()
        assert not waiting.ready()
        assert s.starts == 1

        busy.leave(occupant.id)
        assert waiting.get(timeout=20) is not busy
        assert not occupant.deaths

    with stage(world, max_hosts=1) as s:
        busy = s.acquire()
        occupant = Occupant().enter(busy)
        ended: AsyncResult = AsyncResult()
        waiting = gevent.spawn(s.acquire, uuid4(), unless=ended)
        gevent.idle()
        ended.set(None)
        waiting.join(timeout=20)
        assert isinstance(waiting.exception, AcquireCancelled)

        busy.leave(occupant.id)
        assert s.acquire() is busy, "nobody wants its slot any more"
        assert s.starts == 1


@within(stage, max_hosts=2)
def test_more_revisions_than_slots_are_all_served_and_no_slot_is_taken_twice(s: Stage) -> None:
    def run(revision: UUID) -> Occupant:
        occupant = Occupant().enter(host := s.acquire(revision))
        assert sum(is_alive(pid) for pid in set(s.pids)) <= 2
        until(lambda: occupant.frames)
        host.leave(occupant.id)
        return occupant

    revisions = [uuid4() for _ in range(3)]
    running = [gevent.spawn(run, revision) for revision in revisions * 2]
    gevent.joinall(running, raise_error=True)

    assert not any(greenlet.value.deaths for greenlet in running)


@within(stage, max_hosts=2)
def test_of_those_who_wait_the_revision_with_fewest_hosts_goes_first(s: Stage) -> None:
    alone = [quarantine.group(uuid4(), ALONE) for _ in range(4)]
    first, second = s.acquire(group=alone[0]), s.acquire(group=alone[1])
    occupant = Occupant().enter(first)
    Occupant().enter(second)
    third = gevent.spawn(s.acquire, group=alone[2])
    gevent.idle()
    other = gevent.spawn(s.acquire, uuid4(), group=alone[3])
    gevent.idle()
    first.leave(occupant.id)

    Occupant().enter(other.get(timeout=20))
    assert not third.ready()
    third.kill()


@greened
def test_a_host_that_is_never_idle_gives_way_to_who_has_waited_long(world: World) -> None:
    with constants(host_pool, SLOT_WAIT_SECONDS=0.1), stage(world, max_hosts=2) as s:
        long, short = s.acquire(uuid4()), s.acquire(uuid4())
        Occupant().enter(long)
        occupants = [Occupant().enter(short) for _ in range(2)]
        waiting = gevent.spawn(s.acquire, uuid4())
        until(lambda: short.is_retiring)
        again = gevent.spawn(s.acquire, short.revision_id)
        for occupant in occupants:
            short.leave(occupant.id)

        assert waiting.get(timeout=20) not in (long, short)
        assert again.get(timeout=20) is not short
        assert long.died is None


@greened
def test_an_idle_host_leaves_and_a_busy_one_stays(world: World) -> None:
    with stage(world, host_idle_seconds=0.2) as s:
        idle, busy = s.acquire(uuid4()), s.acquire(uuid4())
        occupant = Occupant().enter(busy)
        until(lambda: not is_alive(idle.pid))
        assert busy.died is None

        busy.leave(occupant.id)
        until(lambda: not is_alive(busy.pid))
        assert not occupant.deaths

    with stage(world, host_idle_seconds=0) as s:
        serving, replaced = s.acquire(uuid4()), s.acquire(uuid4())
        s.pool.adjust({replaced.revision_id: HostLimits(is_replaced=True), serving.revision_id: HostLimits()})
        assert s.pool._idle_seconds(serving) == math.inf
        assert s.pool._idle_seconds(replaced) == host_pool.REPLACED_IDLE_SECONDS


@greened
def test_of_two_idle_hosts_of_a_revision_one_leaves_early(world: World) -> None:
    with constants(host_pool, ADDITIONAL_IDLE_SECONDS=0.2), stage(world, hosts_per_revision=2) as s:
        s.part = "has no threads"
        first = s.acquire()
        occupant = Occupant().enter(first)
        until(lambda: len(list(s.pool.all())) == 2)
        first.leave(occupant.id)
        until(lambda: len(list(s.pool.all())) == 1)

        (left,) = s.pool.all()
        assert s.pool._idle_seconds(left) == s.pool._settings.host_idle_seconds


@within(stage, hosts_per_revision=1)
def test_a_deployments_own_number_of_hosts_holds_and_can_change(s: Stage) -> None:
    s.part = "silent"  # no ping answer resets the `delay` set below
    s.limits = HostLimits(hosts_per_runner=2)
    first = s.acquire()
    first.health.delay = 1.0
    Occupant().enter(first)
    s.acquire()
    until(lambda: len(list(s.pool.all())) == 2)
    s.pids += [host.pid for host in s.pool.all()]
    second = next(host for host in s.pool.all() if host is not first)

    s.pool.adjust({s.revision: HostLimits(hosts_per_runner=1)})

    assert list(s.pool.all()) == [first], "the idle one goes"
    until(lambda: not is_alive(second.pid))


@within(stage)
def test_hosts_of_what_is_deleted_stop_when_they_are_idle(s: Stage) -> None:
    busy, idle = s.acquire(uuid4()), s.acquire(uuid4())
    occupant = Occupant().enter(busy)
    gone = {host.revision_id: HostLimits(is_deleted=True) for host in (busy, idle)}

    s.pool.adjust(gone)
    assert list(s.pool.all()) == [busy]

    busy.leave(occupant.id)
    s.pool.adjust(gone)
    assert list(s.pool.all()) == []
    until(lambda: not is_alive(busy.pid) and not is_alive(idle.pid))


@within(stage)
def test_replays_share_hosts_of_their_own(s: Stage) -> None:
    ordinary = s.acquire()
    replaying = s.acquire(group=quarantine.group(uuid4(), 0, REPLAY))
    occupant = Occupant().enter(replaying)

    assert replaying is not ordinary
    assert s.acquire(group=quarantine.group(uuid4(), 0, REPLAY)) is replaying
    assert s.acquire(group=quarantine.group(uuid4(), 0, OFFLINE_REPLAY)) not in (ordinary, replaying)
    assert s.acquire() is ordinary

    replaying.leave(occupant.id)
    assert s.acquire(group=quarantine.group(uuid4(), 0, REPLAY)) is replaying, "it waits for the next case"


@pytest.mark.parametrize(
    ("replay", "kind"),
    [
        (None, ORDINARY),
        ({"models": "live"}, REPLAY),
        ({"models": "recorded"}, OFFLINE_REPLAY),
        ({"models": "recorded", "network": True}, REPLAY),
        ({"models": "recorded", "tools": "live"}, REPLAY),
        ({"models": "recorded", "tools": "recorded", "live_tools": ["search"]}, REPLAY),
    ],
)
def test_a_replay_has_no_network_only_if_nothing_of_it_can_need_one(
    replay: dict[str, Any] | None, kind: int
) -> None:
    assert quarantine.kind_of(replay) == kind


@within(stage, max_hosts=1)
def test_a_nested_run_needs_no_slot_that_runs_above_it_hold(s: Stage) -> None:
    others = [uuid4() for _ in range(3)]
    Occupant().enter(s.acquire())
    waits = gevent.spawn(s.acquire, others[0])
    first = s.acquire(others[1], depth=1)
    in_first = Occupant().enter(first)
    Occupant().enter(s.acquire(others[2], depth=2))
    second = gevent.spawn(s.acquire, others[2], depth=1)

    assert s.acquire(others[1], depth=1) is first
    assert not waits.ready()
    assert not second.ready()
    first.leave(in_first.id)
    until(second.ready)
    assert second.get().group == quarantine.reserved(DEFAULT_GROUP, 1)


@greened
def test_a_reserved_host_takes_no_new_runs_when_another_revision_waits_for_its_slot(world: World) -> None:
    with constants(host_pool, SLOT_WAIT_SECONDS=0.1), stage(world, max_hosts=1) as s:
        Occupant().enter(s.acquire())
        busy, other = uuid4(), uuid4()
        reserved = s.acquire(busy, depth=1)
        occupant = Occupant().enter(reserved)
        waits = gevent.spawn(
            lambda: Occupant().enter(s.acquire(other, depth=1))
        )  # before `late` can evict it
        until(lambda: reserved.is_retiring)
        late = gevent.spawn(s.acquire, busy, depth=1)
        reserved.leave(occupant.id)
        until(waits.ready)
        assert waits.get()
        assert not late.ready()


@within(stage, max_hosts=2)
def test_nested_runs_that_are_kept_apart_are_so_on_reserved_hosts(s: Stage) -> None:
    alone = [quarantine.Group(ALONE, number) for number in range(4)]
    for group in alone[:2]:
        Occupant().enter(s.acquire(group=group))
    third = s.acquire(group=alone[2], depth=1)
    in_third = Occupant().enter(third)
    fourth = gevent.spawn(s.acquire, group=alone[3], depth=1)
    open_to_all = s.acquire(depth=1)

    assert open_to_all not in (third, None)
    assert not fourth.ready()
    third.leave(in_third.id)
    until(fourth.ready)
    assert fourth.get() is not third
