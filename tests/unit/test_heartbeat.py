"""A worker process notices that messages no longer reach it, and only then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from sqlalchemy import Engine, text

from shared import fleet
from shared.infra.postgres import connection
from shared.models import HEARTBEAT_SECONDS
from shared.settings import Settings
from workers import celery_app, heartbeat
from workers.heartbeat import DEAD_SECONDS, HeartbeatSender
from workers.isolation.levels import Isolation

QUEUE = "runyard:celery:canary.box:1:a"


class Stage:
    """A worker process whose clock and messages the test controls."""

    kind = "runner"
    isolation = Isolation(2, 1024, has_namespace=True)

    def __init__(self, settings: Settings) -> None:
        self.now = 1000.0
        self.is_full = False
        self.is_away = False
        self.sent: Callable[[str], None] = lambda worker: None
        self.ended = 0
        self.drains: list[bool] = []
        self.sender = HeartbeatSender(
            dataclasses.replace(settings, worker="box:1:a"),
            self,
            send_canary=self.send,
            clock=lambda: self.now,
        )

    def send(self, worker: str) -> None:
        if self.is_away:
            raise ConnectionRefusedError
        self.sent(worker)

    def figures(self) -> dict[str, int]:
        return {"slots": 9, "running": 4}

    def set_drained(self, is_drained: bool) -> None:
        self.drains.append(is_drained)

    def die(self) -> None:
        self.ended += 1

    def live(self, seconds: float, *, hears: bool = False) -> None:
        """Advance the clock by so many seconds, with one check per heartbeat. `hears`: the canary message arrives."""
        for _ in range(int(seconds / HEARTBEAT_SECONDS)):
            self.now += HEARTBEAT_SECONDS
            self.sender.check()
            if hears:
                self.sender.canary_returned()


@pytest.fixture
def stage(settings: Settings) -> Stage:
    return Stage(settings)


def test_a_process_that_gets_its_canaries_lives(stage: Stage, redis_url: str, redis: Redis) -> None:
    celery_app.configure(redis_url)
    stage.sent = heartbeat.send_canary
    stage.live(5 * DEAD_SECONDS, hears=True)
    assert stage.ended == 0
    assert redis.llen(QUEUE) == 5 * DEAD_SECONDS / HEARTBEAT_SECONDS / heartbeat.HEARTBEATS_A_CANARY
    assert not redis.keys("*_kombu.binding*")


def test_one_that_gets_none_for_a_minute_ends(stage: Stage) -> None:
    stage.live(DEAD_SECONDS)
    assert stage.ended == 0
    stage.live(HEARTBEAT_SECONDS)
    assert stage.ended == 1


def test_a_broker_that_is_away_is_no_reason_to_end(stage: Stage) -> None:
    stage.live(DEAD_SECONDS / 2)
    stage.is_away = True
    stage.live(2 * DEAD_SECONDS)
    stage.is_away = False
    stage.live(DEAD_SECONDS - HEARTBEAT_SECONDS)
    assert stage.ended == 0, "its canaries have had no minute yet"
    stage.live(4 * HEARTBEAT_SECONDS)
    assert stage.ended > 0


@pytest.mark.parametrize("reason", ["is_full", "draining"])
def test_one_that_can_get_nothing_is_left_alone(stage: Stage, reason: str) -> None:
    stage.live(DEAD_SECONDS)
    if reason == "draining":
        stage.sender.draining = True
    else:
        stage.is_full = True
    stage.live(2 * DEAD_SECONDS)
    assert stage.ended == 0


@pytest.mark.usefixtures("redis")
def test_it_writes_its_row(stage: Stage, db: Engine) -> None:
    stage.now += 7
    stage.sender.send()
    stage.sender.draining = True
    stage.sender.send()

    with connection() as conn:
        row: Any = conn.execute(text("SELECT * FROM worker")).one()
    assert (row.id, row.kind, row.pool, row.host_name, row.isolation) == (
        "box:1:a",
        "runner",
        "default",
        "box",
        2,
    )
    assert (row.state, row.slots, row.running, row.heard_seconds) == ("draining", 9, 4, 7.0)

    stage.sender.leave()
    with connection() as conn:
        assert conn.execute(text("SELECT count(*) FROM worker")).scalar() == 0


def test_a_worker_consumes_a_queue_of_its_own_that_leaves_nothing_behind(redis_url: str) -> None:
    app = celery_app.configure(redis_url, app=Celery("one"))
    app.amqp.queues.select(["runs.default"])

    heartbeat.consume_canaries(app.amqp.queues, "box:1:a")

    assert set(app.amqp.queues.consume_from) == {"runs.default", "canary.box:1:a"}
    own = app.amqp.queues.consume_from["canary.box:1:a"]
    assert (own.exchange.name, own.no_ack) == ("", True)


def test_it_drains_and_resumes_when_an_operator_says_so(stage: Stage, db: Engine) -> None:
    stage.sender.send()
    assert stage.drains == []
    with connection() as conn:
        fleet.request_drain(conn, "box:1:a")
    stage.sender.send()
    stage.sender.send()
    assert stage.drains == [True]
    assert stage.sender.why_not_ready() == "it drains"

    with connection() as conn:
        fleet.leave(conn, "box:1:a")  # as upkeep does after a long silence
    stage.sender.send()
    assert stage.drains == [True]

    with connection() as conn:
        fleet.resume(conn, "box:1:a")
    stage.sender.send()
    assert stage.drains == [True, False]
    assert stage.sender.why_not_ready() is None
    assert stage.ended == 0


@pytest.mark.usefixtures("db")
def test_it_is_ready_while_its_rows_are_written_and_it_does_not_drain(stage: Stage) -> None:
    assert stage.sender.why_not_ready() == "it has not reached the database yet"

    stage.sender.send()
    assert stage.sender.why_not_ready() is None

    stage.now += 4 * HEARTBEAT_SECONDS
    assert stage.sender.why_not_ready() == "it has not reached the database for 20 s"

    stage.sender.send()
    stage.sender.draining = True
    assert stage.sender.why_not_ready() == "it drains"
