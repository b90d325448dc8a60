"""A runner whose graph hosts die, break or are full: runs continue elsewhere, and a run that kills its hosts ends."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

import gevent
import orjson
from sqlalchemy import text

from shared.deployments import limits
from shared.infra import redis
from shared.infra.postgres import connection
from tests.support.greened import constants, within
from tests.support.played_hosts import Occupant, played
from tests.support.runner_bench import Bench, bench, prepare, show
from tests.support.waiting import until
from workers.graph_host import frames
from workers.runner import host_health, host_pool
from workers.runner.host_pool import HostPool, PreparedHost
from workers.runner.quarantine import DEFAULT_GROUP


@within(bench)
def test_a_run_whose_host_was_killed_goes_on_from_its_checkpoint(b: Bench) -> None:
    notes = b.settings.data_dir / "notes"
    run_id = b.start("counts", {"n": 8, "file": str(notes), "seconds": 0.15}, durability="sync")
    until(lambda: notes.exists() and len(notes.read_text().split()) >= 3)
    os.kill(b.hosts()[0], signal.SIGKILL)
    found = b.wait(run_id)

    row = b.row(run_id)
    assert (row["status"], row["attempt"], row["deaths"]) == ("success", 2, 1)
    assert row["last_death"] == "was killed by SIGKILL"
    assert b.thread(run_id)["values"]["log"] == list(range(8))
    done = [int(number) for number in notes.read_text().split()]
    assert len(done) <= 9  # at most the interrupted step was executed twice
    numbers = [event.seq for event in found]
    assert numbers == sorted(set(numbers))
    attempts = [orjson.loads(e.data)["attempt"] for e in found if e.name == "metadata"]
    assert attempts == [1, 2]


@within(bench)
def test_runs_whose_host_died_go_on_together_and_count_no_death(b: Bench) -> None:
    ids = [b.start("sleeps", {"seconds": 3}, stream_mode=["custom"]) for _ in range(8)]
    for run_id in ids:
        b.wait_for_event(run_id, b"asleep")
    hosts = set(b.hosts())
    for pid in hosts:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len([host for host in b.runner.hosts.all() if host.group != DEFAULT_GROUP]) == 1)
    for run_id in ids:
        b.wait(run_id)

    rows = [b.row(run_id) for run_id in ids]
    assert {(row["status"], row["attempt"], row["deaths"], row["quarantine"]) for row in rows} == {
        ("success", 2, 0, 1)
    }


@within(bench)
def test_a_run_that_kills_its_host_every_time_ends_and_takes_no_other_with_it(b: Bench) -> None:
    others = [
        b.start("sleeps", {"seconds": 2}, stream_mode=["custom"]) for _ in range(4)
    ]  # too many to put each on a host of its own at once
    for run_id in others:
        b.wait_for_event(run_id, b"asleep")
    poison = b.start("dies", {"how": "kill"})

    found = b.wait(poison)
    row = b.row(poison)
    assert (row["status"], row["error"]["error"]) == ("error", "RunAbandoned")
    assert orjson.loads(found[-2].data)["error"] == "RunAbandoned"
    assert "SIGKILL (3 times in a row)" in row["error"]["message"]
    thread = b.thread(poison)
    assert (thread["status"], thread["error"]["error"]) == ("error", "RunAbandoned")
    for run_id in others:
        b.wait(run_id)
    rows = [b.row(run_id) for run_id in others]
    assert [(row["status"], row["deaths"]) for row in rows] == [("success", 0)] * len(others)


@within(bench)
def test_runs_that_a_host_does_not_begin_go_to_another(b: Bench) -> None:
    with first_host_idle(b):
        for run_id in [b.start("echo", {"text": "hi"}) for _ in range(3)]:
            b.wait(run_id)
            row = b.row(run_id)
            assert (row["status"], row["attempt"], row["deaths"]) == ("success", 1, 0)


@within(bench, hosts_per_revision=2)
def test_a_run_that_gets_no_thread_in_its_host_goes_to_another(b: Bench) -> None:
    with single_threads(b), socket.create_server(("", 0)) as silent:
        asked = {"n": 1, "how": f"http://127.0.0.1:{silent.getsockname()[1]} key"}
        first = b.start("calls", asked)
        never_answered, _ = silent.accept()
        second = b.start("calls", {"n": 0})
        b.wait(second)

        row = b.row(second)
        assert (row["status"], row["deaths"]) == ("success", 0)
        assert b.status(first) == "running"
        never_answered.close()
        b.wait(first)


@within(bench, max_hosts=1, drain_seconds=0.1, lease_seconds=2.0)
def test_a_run_that_waits_for_a_host_is_cancelled_fenced_handed_over_or_out_of_time(b: Bench) -> None:
    def waiting() -> UUID:
        run_id = b.start("echo")
        until(lambda: b.status(run_id) == "running")
        return run_id

    with full(b):
        cancelled = waiting()
        b.cancel(cancelled, "interrupt")
        b.wait(cancelled)
        assert b.status(cancelled) == "interrupted"

        lost = waiting()
        with connection() as conn:
            conn.execute(
                text("UPDATE run SET owner = 'other', attempt = attempt + 1 WHERE run_id = :id"), {"id": lost}
            )
        until(lambda: not b.runner.executions)

        handed_over = waiting()
        with connection() as conn:
            limits.change(conn, b.deployment.id, {"run_timeout_seconds": 0.5})
        late = b.start("echo")
        b.wait(late)
        assert b.status(late) == "timeout"

        b.runner.drain()
        until(lambda: b.status(handed_over) == "pending")


@contextmanager
def first_host_idle(b: Bench) -> Iterator[None]:
    """Give the bench a pool whose first host only answers pings, and which soon checks whether hosts began a run."""
    idle = [played("pongs only", b.settings.data_dir / "note", b.settings.data_dir)]

    def first_played(revision_id: UUID) -> PreparedHost:
        return PreparedHost(idle.pop(), show) if idle else prepare(revision_id)

    with constants(host_pool, PING_SECONDS=0.1), constants(host_health, QUIET_SECONDS=0.5):
        pool = b.with_hosts(HostPool(b.settings, first_played))
        try:
            yield
        finally:
            pool.close()


@contextmanager
def single_threads(b: Bench) -> Iterator[None]:
    """Give the bench a pool whose hosts execute one synchronous node at a time."""

    def one_thread(revision_id: UUID) -> PreparedHost:
        prepared = prepare(revision_id)
        argv = [*prepared.command.argv, "--threads", "1"]
        return prepared._replace(command=dataclasses.replace(prepared.command, argv=argv))

    pool = b.with_hosts(HostPool(b.settings, one_thread))
    try:
        yield
    finally:
        pool.close()


@contextmanager
def full(b: Bench) -> Iterator[None]:
    """Give the bench a pool whose only host is busy. The host is a fake that executes no run."""
    command = played("plays along", b.settings.data_dir / "note", b.settings.data_dir)
    pool = b.with_hosts(HostPool(b.settings, lambda _: PreparedHost(command, show)))
    pool.acquire(uuid4()).enter(uuid4().bytes, Occupant(), b"{}", kind=frames.CANCEL)
    try:
        yield
    finally:
        pool.close()


@within(bench, lease_seconds=30.0)
def test_a_run_cancelled_while_its_host_dies_ends(b: Bench) -> None:
    run_id = b.start_asleep()
    b.cancel(run_id, "interrupt", tell=False)
    os.kill(b.hosts()[0], signal.SIGKILL)
    b.wait(run_id)

    assert b.status(run_id) == "interrupted"


@within(bench)
def test_warming_starts_a_host(b: Bench) -> None:
    revision_id = str(b.deployment.active_revision_id)
    until(
        lambda: (
            redis.client().publish(redis.warm_channel(b.settings.pool), revision_id)
            and gevent.sleep(0.1) is None
            and b.hosts()
        )
    )

    assert len(b.hosts()) == 1
