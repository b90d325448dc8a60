"""Webhook deliveries over HTTP: search and redelivery."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import tests.support.factories as make
from shared.infra.postgres import connection
from shared.models import RunStatus
from shared.runs import webhooks
from tests.contract.conftest import Api
from tests.support.user_code import PlayedAuth, owner_only, refuse

ENDED = datetime.now(UTC)
SECRET = "https://user:password@receiver.example:8443/hook?token=s3cret&plain&a=%26#part"


def run(api: Api, **thread: Any) -> UUID:
    thread_id = make.thread(api.deployment.id, **thread)
    return make.run(api.deployment, thread_id, status=RunStatus.SUCCESS)


def search(api: Api, **body: Any) -> list[Any]:
    response = api.post("/webhooks/search", body)
    assert response.status_code == 200, response.text
    return response.json


def retry(api: Api, id: UUID) -> int:
    return api.post(f"/webhooks/{id}/retry").status_code


def test_deliveries_are_listed_with_their_outcome(api: Api, neighbour: Api) -> None:
    make.webhook_delivery(neighbour.deployment, run(neighbour))
    first, second = run(api), run(api)
    delivered = make.webhook_delivery(
        api.deployment, first, url=SECRET, attempt=2, response_status=204, ended_at=ENDED
    )
    failed = make.webhook_delivery(
        api.deployment,
        first,
        attempt=5,
        response_status=500,
        failure="the receiver answered 500",
        ended_at=ENDED,
    )
    pending = make.webhook_delivery(api.deployment, second)

    response = api.post("/webhooks/search")

    records: Any = response.json
    assert [record["delivery_id"] for record in records] == [str(pending), str(failed), str(delivered)]
    assert response.headers["X-Pagination-Total"] == "3"
    record = records[2]
    assert datetime.fromisoformat(record.pop("delivered_at")) == ENDED
    assert record.pop("created_at") <= records[0]["created_at"]
    assert UUID(record.pop("thread_id"))
    assert record == {
        "delivery_id": str(delivered),
        "run_id": str(first),
        "type": "run.ended",
        "url": "https://receiver.example:8443/hook?token=…&plain=…&a=…",
        "status": "delivered",
        "attempts": 2,
        "response_status": 204,
        "error": None,
        "next_attempt_at": None,
    }
    assert (records[1]["status"], records[1]["error"]) == ("failed", "the receiver answered 500")
    assert (records[1]["delivered_at"], records[1]["next_attempt_at"]) == (None, None)
    assert (records[0]["status"], records[0]["response_status"]) == ("pending", None)
    assert records[0]["next_attempt_at"] is not None

    assert [found["delivery_id"] for found in search(api, status="failed")] == [str(failed)]
    assert [found["delivery_id"] for found in search(api, run_id=str(second))] == [str(pending)]
    assert [found["delivery_id"] for found in search(api, limit=1, offset=2)] == [str(delivered)]


def test_one_that_failed_is_due_again_at_once(api: Api, neighbour: Api) -> None:
    later = ENDED + timedelta(hours=1)
    failed = make.webhook_delivery(api.deployment, run(api), attempt=5, failure="no", ended_at=ENDED)
    waiting = make.webhook_delivery(api.deployment, run(api), attempt=3, failure="no", due_at=later)
    busy = make.webhook_delivery(api.deployment, run(api), attempt=1, owner="box:1:a", due_at=later)

    assert retry(neighbour, failed) == 404
    assert [retry(api, id) for id in (failed, failed, waiting, busy)] == [202] * 4
    assert retry(api, uuid4()) == 404

    assert {record["status"] for record in search(api)} == {"pending"}
    with connection() as conn:
        taken = webhooks.claim(conn, owner="a", limit=10)
    assert {(delivery.delivery_id, delivery.attempt) for delivery in taken} == {(failed, 1), (waiting, 1)}


def test_users_see_and_make_again_their_own_alone(ann: Api, bob: Api, played: PlayedAuth) -> None:
    of_ann = make.webhook_delivery(ann.deployment, run(ann, metadata={"owner": "ann"}))
    gone = make.run(ann.deployment, kwargs={"thread_metadata": {"owner": "ann"}}, thread_id=None)
    of_gone = make.webhook_delivery(ann.deployment, gone)
    forgotten = make.webhook_delivery(ann.deployment, run(ann))
    with connection() as conn:
        for id in (gone,):
            conn.exec_driver_sql(
                "DELETE FROM thread WHERE thread_id = (SELECT thread_id FROM run WHERE run_id = %(id)s)",
                {"id": id},
            )
    played.on(owner_only)

    assert {record["delivery_id"] for record in search(ann)} == {str(of_ann), str(of_gone)}
    assert search(bob) == []
    for id in (of_ann, of_gone, forgotten):
        assert retry(bob, id) == 404
    assert (retry(ann, of_ann), retry(ann, of_gone), retry(ann, forgotten)) == (202, 202, 404)
    played.on(refuse, "threads", "update")
    assert retry(ann, of_ann) == 403
