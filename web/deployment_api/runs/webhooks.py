"""Webhook deliveries: search for them, and retry one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask import Response

from shared.infra.postgres import connection
from shared.infra.replica import read
from shared.runs import webhook_records
from shared.runs.webhook_records import DeliveryStatus
from web.gate.context import allow, deployment, metadata_of, unchecked_deployment, user
from web.http.responses import PAGE_HEADERS, page
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("webhooks", section="Webhooks", switches=("disable_runs",))


class DeliverySearch(fields.Schema):
    run_id = fields.UuidField(allow_none=True)
    status = fields.OneOf(*DeliveryStatus, allow_none=True)
    limit = fields.StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = fields.StrictInteger(minimum=0, maximum=fields.MAX_OFFSET, load_default=0)


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
def search_webhooks(body: dict[str, Any]) -> Response:
    """Search deliveries. URLs are shown without credentials and without the values of their query parameters.

    `attempts` counts from the creation of the delivery, or from its last retry. Deliveries that have ended are stored
    for a limited time.
    """
    limit, offset = body["limit"], body["offset"]
    granted = allow("threads", "search", metadata={}, values={}, limit=limit, offset=offset)
    status = body.get("status")
    rows, total = read(
        webhook_records.search,
        deployment().id,
        limit=limit,
        offset=offset,
        run_id=body.get("run_id"),
        status=None if status is None else DeliveryStatus(status),
        filter=granted.filter,
        metadata=metadata_of(granted),
    )
    return page([webhook_records.RECORD.show(row) for row in rows], offset=offset, limit=limit, total=total)


@bp.operation(
    "POST /webhooks/<delivery_id>/retry",
    "Send a webhook delivery again",
    role="run",
    status=202,
    errors=(404,),
)
def retry_webhook(delivery_id: UUID) -> None:
    """Deliver again at once, under the same id, whatever the status. Simultaneous retries cause one delivery."""
    granted = allow("threads", "update", thread_id=_thread_of(delivery_id), metadata={})
    with connection() as conn:
        webhook_records.deliver_again(
            conn, deployment().id, delivery_id, filter=granted.filter, metadata=metadata_of(granted)
        )


def _thread_of(delivery_id: UUID) -> UUID | None:
    """Return the thread whose update is to be authorized. The caller must not learn it before that."""
    if user() is None:
        return None
    with connection() as conn:
        return webhook_records.thread_of(conn, unchecked_deployment().id, delivery_id)
