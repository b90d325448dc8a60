"""Start position of a stream of a thread's events, and the remains of runs whose logs are gone."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError

from shared.errors import Unavailable
from shared.eventlog import follow
from shared.infra import redis
from shared.protocol import lifecycle, stream
from tests.contract.conftest import Api
from tests.support.acting import act
from tests.support.protocol import (
    ALL,
    RUN,
    WAITING,
    WHOLE,
    Host,
    brief,
    classic,
    one_run,
    replay,
    started,
    subscribed,
)

# Start of a stream without a position


def test_watchers_are_given_an_end_once_and_content_does_not_count_for_them(api: Api, thread_id: str) -> None:
    one_run(api, thread_id)
    assert brief(replay(api, thread_id, WAITING)) == ["lifecycle running", "lifecycle completed"]
    assert replay(api, thread_id, WAITING) == []
    assert brief(replay(api, thread_id)) == WHOLE

    one_run(api, thread_id)
    replay(api, thread_id)
    assert brief(replay(api, thread_id, WAITING)) == ["lifecycle running", "lifecycle completed"]


def test_nobody_waits_for_the_end_of_a_run_that_no_command_made(api: Api, thread_id: str) -> None:
    act(classic(api, thread_id), {"n": 1})
    with subscribed(api, thread_id, WAITING) as watcher:
        assert watcher.quiet() == []
        run_id = one_run(api, thread_id)
        assert {event["event_id"].split(":")[1] for event in watcher.quiet()} == {run_id}


def test_a_stream_begins_with_the_oldest_run_that_has_not_ended(api: Api) -> None:
    for channels in (ALL, WAITING):
        thread_id = api.post("/threads").json["thread_id"]
        one_run(api, thread_id)
        ids = [started(api, thread_id)["result"]["run_id"] for _ in range(2)]
        host = Host(ids[0])
        with subscribed(api, thread_id, channels) as reader:
            assert [event["event_id"] for event in reader.quiet()] == [f"synth:{ids[0]}:lc||running"]
            host.finish({})
            Host(ids[1]).finish({})
            assert [event["event_id"] for event in reader.quiet()] == [
                f"synth:{ids[0]}:lc||completed",
                f"synth:{ids[1]}:lc||running",
                f"synth:{ids[1]}:lc||completed",
            ]


def test_a_stream_begins_with_the_run_that_asks(api: Api, thread_id: str) -> None:
    run_id = started(api, thread_id)["result"]["run_id"]
    Host(run_id).ask(q="?")
    for _ in range(2):
        events = replay(api, thread_id, WAITING)
        assert brief(events) == ["lifecycle running", "input.requested", "lifecycle interrupted"]
    assert events[1]["event_id"] == f"synth:{run_id}:input||q"
    assert events[1]["params"]["data"] == {"interrupt_id": "q", "payload": "?", "value": "?"}


def test_the_answer_to_a_start_names_the_position_before_its_run(api: Api, thread_id: str) -> None:
    one_run(api, thread_id)
    answer = started(api, thread_id)
    through = answer["meta"]["applied_through_seq"]
    assert through > replay(api, thread_id, since=0)[2]["seq"]
    Host(answer["result"]["run_id"]).finish({})
    assert brief(replay(api, thread_id, WAITING, since=through)) == [
        "lifecycle running",
        "lifecycle completed",
    ]


def test_a_reader_goes_on_after_each_event_without_loss(api: Api, thread_id: str) -> None:
    for _ in range(2):
        host = Host(started(api, thread_id)["result"]["run_id"])
        for n in range(3):
            host.show("messages", {"n": n})
        host.finish({})
    whole = replay(api, thread_id, since=0)
    assert len(whole) == 10
    for at, event in enumerate(whole):
        assert replay(api, thread_id, since=event["seq"]) == whole[at + 1 :]


def test_before_the_beginning_is_the_beginning_and_beyond_the_end_nothing_old(
    api: Api, thread_id: str
) -> None:
    one_run(api, thread_id)
    assert brief(replay(api, thread_id, since=-5)) == WHOLE
    for beyond in (2 * RUN, 5 * RUN, 1 << 60):
        with subscribed(api, thread_id, since=beyond) as reader:
            assert reader.quiet() == [], beyond
            one_run(api, thread_id)
            assert brief(reader.until("lifecycle completed")) == WHOLE, beyond


# Events without a log


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every ended run as having ended long ago."""
    monkeypatch.setattr(stream, "SETTLED_SECONDS", -60)


def test_lifecycle_is_the_same_when_the_log_was_lost(api: Api, thread_id: str, settled: None) -> None:
    one_run(api, thread_id)
    before = replay(api, thread_id, ["lifecycle"], since=0)
    redis.client().flushall()
    assert replay(api, thread_id, ["lifecycle"], since=0) == ["history expired", *before]


def test_what_is_asked_is_in_the_row_when_the_log_was_lost(api: Api, thread_id: str, settled: None) -> None:
    Host(started(api, thread_id)["result"]["run_id"]).ask(q="?", r={"deep": 1})
    before = replay(api, thread_id, WAITING)
    redis.client().flushall()
    after = replay(api, thread_id, WAITING)
    assert brief(after) == ["history expired", *brief(before)]
    assert [event["event_id"] for event in after[1:]] == [event["event_id"] for event in before]
    assert [event["params"]["data"] for event in after[1:]] == [event["params"]["data"] for event in before]
    numbers = [event["seq"] for event in after[1:]]
    assert numbers == sorted(numbers)
    assert replay(api, thread_id, WAITING, since=numbers[1])[1:] == after[3:]


@pytest.mark.parametrize("unwritten", [0, 1])
def test_a_running_run_whose_log_is_lost_ends_all_the_same(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch, unwritten: int
) -> None:
    """The reader learns whether it lacks any event."""
    for name in ("SELF_CHECK_SECONDS", "ROW_CHECK_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(follow, name, 0.05)
    monkeypatch.setattr(Host, "end", lambda *said: None)  # the owner cannot reach Redis
    host = Host(started(api, thread_id)["result"]["run_id"])
    host.show("values", {"n": 1})
    with subscribed(api, thread_id) as reader:
        before = reader.quiet()
        redis.client().flushall()
        host._next += unwritten
        host.finish({})
        after = reader.until("lifecycle completed")
    assert brief(after) == [*["history expired"] * unwritten, "lifecycle completed"]
    assert after[-1]["seq"] > before[-1]["seq"]


def test_a_log_that_cannot_be_read_now_is_not_taken_for_lost(
    api: Api, thread_id: str, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_run(api, thread_id)
    real = redis.client()
    calls = iter(range(4))

    class Away:
        def __getattr__(self, name: str) -> Any:
            if next(calls, None) is not None:
                raise ConnectionError("away")
            return getattr(real, name)

    monkeypatch.setattr("shared.eventlog.follow.server_of", lambda _: Away())
    monkeypatch.setattr(redis, "client", Away)
    with subscribed(api, thread_id) as reader:
        assert brief(reader.until("lifecycle completed")) == WHOLE


def test_a_database_that_is_away_for_a_moment_costs_nothing(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PAUSE_SECONDS", 0.0)
    real, failures = lifecycle.row, iter(range(3))

    def row(*asked: Any) -> Any:
        if next(failures, None) is not None:
            raise Unavailable("away")
        return real(*asked)

    monkeypatch.setattr(lifecycle, "row", row)
    one_run(api, thread_id)
    with subscribed(api, thread_id) as reader:
        assert brief(reader.until("lifecycle completed")) == WHOLE


def test_history_that_is_further_back_than_is_kept_is_said_to_be_gone(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.protocol.stream.KEPT_RUNS", 2)
    for _ in range(4):
        one_run(api, thread_id)
    events = replay(api, thread_id, since=0)
    assert brief(events) == ["history expired", *WHOLE, *WHOLE]
    assert events[1]["seq"] == 3 * RUN + 1
    assert brief(replay(api, thread_id, since=3 * RUN)) == [*WHOLE, *WHOLE]
