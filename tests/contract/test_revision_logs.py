"""A revision's logs: pages of lines, and the live stream of its progress."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from redis import Redis

from shared.deployments import logs, revision_events, revisions
from shared.deployments.logs import BUILD, DEPLOY, Line
from shared.infra import redis as shared_redis
from shared.infra.postgres import connection
from tests.contract.conftest import ControlPlane
from tests.support.waiting import wait_until

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def write(
    deployment: Any,
    *messages: str,
    kind: str = BUILD,
    level: str = "INFO",
    at: datetime = START,
    run_id: UUID | None = None,
) -> None:
    """Append lines of the latest revision, one microsecond apart."""
    with connection() as conn:
        logs.append(
            conn,
            [
                Line(
                    deployment_id=UUID(deployment["id"]),
                    revision_id=UUID(deployment["latest_revision_id"]),
                    kind=kind,
                    at=at + timedelta(microseconds=n),
                    level=level,
                    message=message,
                    run_id=run_id,
                )
                for n, message in enumerate(messages)
            ],
        )


def read(control: ControlPlane, deployment: Any, kind: str = BUILD, **body: Any) -> Any:
    path = f"/v1/projects/{deployment['id']}/revisions/{deployment['latest_revision_id']}/{kind}_logs"
    response = control.post(path, body)
    assert response.status_code == 200, response.text
    return response.json


def messages(answer: Any) -> list[str]:
    return [line["message"] for line in answer["logs"]]


def test_a_line_is_shown_with_a_stable_id_and_its_time(control: ControlPlane, deployed: Any) -> None:
    write(deployed, "hello", at=START + timedelta(microseconds=123456))
    answer = read(control, deployed)
    [line] = answer["logs"]
    milliseconds = START.timestamp() * 1000 + 123.456
    assert {**line, "id": ""} == {
        "id": "",
        "timestamp": milliseconds,
        "level": "INFO",
        "message": "hello",
        "run_id": None,
    }
    assert isinstance(line["id"], str)
    assert line["id"]
    assert answer["next_offset"] is None
    assert read(control, deployed) == answer


def test_the_newest_lines_come_first_in_pages_that_follow_each_other_unless_asked_otherwise(
    control: ControlPlane, deployed: Any
) -> None:
    write(deployed, "a", "b", "c")
    assert messages(read(control, deployed, limit=2)) == ["c", "b"]
    assert messages(read(control, deployed, limit=2, order="asc")) == ["a", "b"]
    first = read(control, deployed, limit=2)
    second = read(control, deployed, limit=2, offset=first["next_offset"])
    assert (messages(second), second["next_offset"]) == (["a"], None)


def test_a_log_can_be_followed_by_its_cursor_or_by_the_newest_time_seen(
    control: ControlPlane, deployed: Any
) -> None:
    write(deployed, "a", "b", "c")
    seen = read(control, deployed, order="asc")["logs"]
    since = datetime.fromtimestamp(seen[1]["timestamp"] / 1000, UTC).isoformat()
    assert messages(read(control, deployed, order="asc", start_time=since))[-2:] == ["b", "c"]

    first = read(control, deployed, order="asc", limit=50)
    assert messages(first) == ["a", "b", "c"]
    quiet = read(control, deployed, order="asc", limit=50, offset=first["next_offset"])
    assert quiet == {"logs": [], "next_offset": first["next_offset"]}
    write(deployed, "d", at=START + timedelta(seconds=1))
    assert messages(read(control, deployed, order="asc", offset=quiet["next_offset"])) == ["d"]


def test_a_line_is_shown_once_none_can_come_before_it_any_more(control: ControlPlane, deployed: Any) -> None:
    now = datetime.now(UTC)
    write(deployed, "settled", kind=DEPLOY, at=now - timedelta(minutes=1))
    write(deployed, "fresh", kind=DEPLOY, at=now + timedelta(minutes=1))
    write(deployed, "fresh", at=now + timedelta(minutes=1))
    assert messages(read(control, deployed, DEPLOY)) == ["settled"]
    assert messages(read(control, deployed, DEPLOY, order="asc", end_time="2100-01-01")) == ["settled"]
    assert messages(read(control, deployed, BUILD)) == ["fresh"], "a build has one writer"


def test_lines_are_filtered(control: ControlPlane, deployed: Any) -> None:
    write(deployed, "Downloading A", "building b")
    write(deployed, "failed", level="ERROR", at=START + timedelta(minutes=1))
    assert messages(read(control, deployed, query="DOWNload")) == ["Downloading A"]
    assert messages(read(control, deployed, query="%")) == []
    assert messages(read(control, deployed, level="WARNING")) == ["failed"]
    assert messages(read(control, deployed, start_time="2026-01-02T03:05:05Z")) == ["failed"]
    assert messages(read(control, deployed, end_time="2026-01-02T03:04:05")) == [
        "building b",
        "Downloading A",
    ]
    assert messages(read(control, deployed, end_time="2026-01-02T00:00:00")) == []


def test_what_one_run_said_is_found_in_the_deployments_log(control: ControlPlane, deployed: Any) -> None:
    own, other = uuid4(), uuid4()
    write(deployed, "began", "Was slow", kind=DEPLOY, run_id=own)
    write(deployed, "failed slowly", kind=DEPLOY, level="ERROR", run_id=own)
    write(deployed, "slow too", kind=DEPLOY, run_id=other)
    write(deployed, "slow host", kind=DEPLOY)
    path = f"/v1/projects/{deployed['id']}/deploy_logs"

    def found(**body: Any) -> list[str]:
        lines: Any = control.post(path, body).json
        assert {line["run_id"] for line in lines["logs"]} <= {str(body["run_id"])}
        return messages(lines)

    assert sorted(found(run_id=own)) == ["Was slow", "began", "failed slowly"]
    assert sorted(found(run_id=own, text="slow")) == ["Was slow", "failed slowly"]
    assert found(run_id=own, text="slow", level="ERROR") == ["failed slowly"]
    assert found(run_id=other, query="SLOW") == ["slow too"]
    assert found(run_id=uuid4()) == []
    refused: Any = control.post(path, {"run_id": "the last"})
    assert (refused.status_code, refused.json["detail"][0]["loc"]) == (422, ["body", "run_id"])


def test_no_body_asks_for_a_hundred_lines_and_no_page_has_more_than_a_thousand(
    control: ControlPlane, deployed: Any
) -> None:
    write(deployed, "a")
    path = f"/v1/projects/{deployed['id']}/revisions/{deployed['latest_revision_id']}/build_logs"
    answer: Any = control.call("POST", path).json
    assert messages(answer) == ["a"]
    nulls = {"order": None, "limit": None, "offset": None, "level": None, "start_time": None}
    assert read(control, deployed, **nulls) == answer

    write(deployed, *map(str, range(1001)))
    assert len(read(control, deployed, limit=10**9)["logs"]) == 1000
    assert len(read(control, deployed)["logs"]) == 100


def test_each_kind_has_its_own_log(control: ControlPlane, deployed: Any) -> None:
    write(deployed, "built")
    write(deployed, "serves", kind=DEPLOY)
    assert messages(read(control, deployed, BUILD)) == ["built"]
    assert messages(read(control, deployed, DEPLOY)) == ["serves"]
    whole: Any = control.post(f"/v1/projects/{deployed['id']}/deploy_logs").json
    assert messages(whole) == ["serves"]


def test_a_bad_wish_is_placed(control: ControlPlane, deployed: Any, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"offset": "not one of ours"}, ["body", "offset"]),
        ({"start_time": "0001-01-01T00:00:00+14:00"}, ["body", "start_time"]),
    ]
    for body, loc in rows:
        with subtests.test(body=body, loc=loc):
            response = control.post(f"/v1/projects/{deployed['id']}/deploy_logs", body)
            assert response.status_code == 422
            assert [item["loc"] for item in response.json["detail"]] == [loc]  # type: ignore[index]


def events_of(raw: bytes) -> list[tuple[str | None, str, Any]]:
    """Return `(id, name, data)` of each event. Omits comments."""
    found = []
    for block in raw.decode().split("\r\n\r\n"):
        fields = dict(
            line.split(": ", 1) for line in block.split("\r\n") if line and not line.startswith(":")
        )
        if fields:
            found.append((fields.get("id"), fields["event"], orjson.loads(fields["data"])))
    return found


def stream(control: ControlPlane, deployment: Any, **headers: str) -> Any:
    path = f"/v2/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}/stream"
    return control.call("GET", path, headers=headers)


def interrupt(control: ControlPlane, deployment: Any) -> None:
    path = f"/v2/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}/interrupt"
    assert control.post(path).status_code == 200


STOPPED = {"status": "INTERRUPTED", "message": "interrupted by a user"}
END = {"status": "INTERRUPTED"}


def test_a_revisions_way_is_streamed_from_the_start(control: ControlPlane, deployed: Any) -> None:
    interrupt(control, deployed)
    response = stream(control, deployed)
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"
    told = events_of(response.data)
    assert [(name, data) for _, name, data in told] == [
        ("status", {"status": "AWAITING_BUILD", "message": None}),
        ("status", STOPPED),
        ("end", END),
    ]
    ids = [int(id) for id, _, _ in told if id]
    assert len(ids) == 3
    assert ids == sorted(ids)


def test_a_stream_goes_on_where_it_was_left(control: ControlPlane, deployed: Any) -> None:
    interrupt(control, deployed)
    [(first, _, _), _, (last, _, _)] = events_of(stream(control, deployed).data)
    rest = events_of(stream(control, deployed, **{"Last-Event-ID": str(first)}).data)
    assert [data for _, _, data in rest] == [STOPPED, END]
    nothing_new = events_of(stream(control, deployed, **{"Last-Event-ID": str(last)}).data)
    assert nothing_new == [(None, "status", STOPPED), (None, "end", END)]
    for unknown in ("999999", "x", "-1", ""):  # unknown ids replay from the start
        assert len(events_of(stream(control, deployed, **{"Last-Event-ID": unknown}).data)) == 3, unknown


def test_a_live_stream_sends_what_happens_and_closes_at_the_end(control: ControlPlane, deployed: Any) -> None:
    chunks = stream(control, deployed).iter_encoded()
    [(_, _, first)] = events_of(next(chunk for chunk in chunks if b"event:" in chunk))
    assert first["status"] == "AWAITING_BUILD"
    interrupt(control, deployed)
    rest = events_of(b"".join(chunks))
    assert [data for _, _, data in rest] == [STOPPED, END]


def test_a_quiet_stream_beats(control: ControlPlane, deployed: Any) -> None:
    config = control.client.application.config
    config["SETTINGS"] = replace(config["SETTINGS"], heartbeat_seconds=0.02)
    chunks = stream(control, deployed).iter_encoded()
    beats = (chunk for chunk in chunks if b": heartbeat\r\n\r\n" in chunk)
    assert [next(beats) for _ in range(3)]


def test_what_ended_long_ago_is_sent_from_its_rows(
    control: ControlPlane, deployed: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revision_events, "REPLAYED_AT_ONCE", 2)
    write(deployed, "one", "two", "three", "four", "five")
    write(deployed, "not of the build", kind=DEPLOY)
    interrupt(control, deployed)
    [(first, _, _), *_] = events_of(stream(control, deployed).data)
    redis.flushall()

    told = events_of(stream(control, deployed).data)
    assert [id for id, _, _ in told] == [None] * 7
    assert [data["message"] for _, name, data in told if name == "log"] == "one two three four five".split()
    assert told[0][2]["timestamp"] == START.isoformat()
    assert told[-2:] == [(None, "status", STOPPED), (None, "end", END)]

    rest = events_of(stream(control, deployed, **{"Last-Event-ID": str(first)}).data)
    assert rest == told[-2:]


def test_it_is_sent_without_redis(
    control: ControlPlane, deployed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(deployed, "one")
    interrupt(control, deployed)
    monkeypatch.setattr(shared_redis, "_client", shared_redis.make_client("unix:///nowhere.sock"))
    told = events_of(stream(control, deployed).data)
    assert [name for _, name, _ in told] == ["log", "status", "end"]


def test_the_row_has_the_end_when_the_log_is_lost_meanwhile(
    control: ControlPlane, deployed: Any, redis: Redis
) -> None:
    chunks = stream(control, deployed).iter_encoded()
    next(chunk for chunk in chunks if b"event:" in chunk)
    with connection() as conn:
        id = UUID(deployed["latest_revision_id"])
        revisions.interrupt(conn, UUID(deployed["id"]), id, reason="interrupted by a user")
    redis.flushall()
    told = events_of(b"".join(chunks))
    assert told == [(None, "status", STOPPED), (None, "end", END)]


def test_a_line_from_a_clock_that_is_ahead_is_shown_as_soon_as_any(
    control: ControlPlane, deployed: Any
) -> None:
    write(deployed, "from tomorrow", kind=DEPLOY, at=datetime.now(UTC) + timedelta(days=1))

    wait_until(lambda: messages(read(control, deployed, DEPLOY)) == ["from tomorrow"])
