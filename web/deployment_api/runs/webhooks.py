"""Webhook deliveries: search for them, and retry one."""

from __future__ import annotations

from uuid import UUID

from flask import Response

from shared.infra.postgres import connection
from shared.infra.replica import read
from shared.runs import webhook_records
from shared.runs.webhook_records import DeliveryStatus
from web.deployment_api.paging import PAGE_HEADERS, page
from web.gate.authorization import allow, changed
from web.gate.context import deployment, unasked, user
from web.schemas.fields import MAX_OFFSET, OneOf, Schema, StrictInteger, UuidField
from web.schemas.operations import RouteGroup
from web.schemas.validation import load

bp = RouteGroup("webhooks", section="Webhooks", switches=("disable_runs",))


class DeliverySearch(Schema):
    run_id = UuidField(allow_none=True)
    status = OneOf(*DeliveryStatus, allow_none=True)
    limit = StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = StrictInteger(minimum=0, maximum=MAX_OFFSET, load_default=0)


@bp.operation(
    "POST /webhooks/search",
    "Search webhook deliveries, newest first",
    role="read",
    slow=True,
    body=DeliverySearch,
    answer=webhook_records.RECORD.schema,
    many=True,
    headers=PAGE_HEADERS,
)
def search_webhooks() -> Response:
    """Search deliveries. URLs are shown without credentials and without the values of their query parameters.

    `attempts` counts from the creation of the delivery, or from its last retry. Deliveries that have ended are stored
    for a limited time.
    """
    body = load(DeliverySearch)
    limit, offset = body["limit"], body["offset"]
    asked = allow("threads", "search", metadata={}, values={}, limit=limit, offset=offset)
    status = body.get("status")
    rows, total = read(
        webhook_records.search,
        deployment().id,
        limit=limit,
        offset=offset,
        run_id=body.get("run_id"),
        status=None if status is None else DeliveryStatus(status),
        filter=asked.filter,
        metadata=changed(asked),
    )
    return page([webhook_records.RECORD.show(row) for row in rows], offset=offset, limit=limit, total=total)


@bp.operation(
    "POST /webhooks/<delivery_id>/retry",
    "Send a webhook delivery again",
    role="run",
    status=202,
    errors=(404,),
)
def retry_webhook(delivery_id: UUID) -> tuple[str, int]:
    """Deliver again at once, under the same id, whatever the status. Simultaneous retries cause one delivery."""
    asked = allow("threads", "update", thread_id=_thread_of(delivery_id), metadata={})
    with connection() as conn:
        webhook_records.deliver_again(
            conn, deployment().id, delivery_id, filter=asked.filter, metadata=changed(asked)
        )
    return "", 202


def _thread_of(delivery_id: UUID) -> UUID | None:
    """Return the thread whose update is to be authorized. The caller must not learn it before that."""
    if user() is None:
        return None
    with connection() as conn:
        return webhook_records.thread_of(conn, unasked().id, delivery_id)
