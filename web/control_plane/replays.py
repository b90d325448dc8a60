"""Replays: a revision executed on past runs of its deployment, with the results compared."""

from __future__ import annotations

import re
from secrets import randbelow
from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify
from marshmallow import ValidationError

from shared import assistants
from shared.audit import Action
from shared.deployments import deployments
from shared.deployments.project_rules import MAX_LIVE_TOOLS, MAX_TOOL_NAME
from shared.errors import Invalid, NotFound
from shared.hosts import calls
from shared.infra.postgres import Row, connection
from shared.models import ENDED_RUN_STATUSES
from shared.removal import deletion
from shared.replays import cases, records, rules
from shared.replays.comparison import Outcome
from shared.replays.records import LIVE, RECORDED, Request, Status
from shared.runs import signals
from shared.runs.cancel import Displaced
from web.control_plane.sources import MAX_PREVIEW, PREVIEW
from web.gate.addresses import deployment_address
from web.gate.audit import actor, record_action
from web.gate.context import base_url, caller, settings
from web.gate.deployments import forget
from web.gate.idempotency import once
from web.http.responses import resource_page, resource_page_schema
from web.schemas import fields
from web.schemas.feedback import FeedbackFilter
from web.schemas.operations import RouteGroup
from web.schemas.validation import whole_number

bp = RouteGroup("replays", section="Replays")

MOST_RUNS = 10_000  # of a replay
MOST_CONCURRENT = 32
MAX_SEED = 2**31 - 1
NOT_LIVE = 'tools may not be executed: the langgraph.json of the revision lacks `"replay": {"tools": "live"}`'


class RevisionName(fields.Field):
    """A revision's id, or its number as `v7`. Loads as a pair of both, one of them None."""

    type_rule = fields.Rule("must be a revision's id, or its number like v7", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {"type": "string"}

    def _deserialize(
        self, value: Any, attr: str | None, data: Any, **kwargs: Any
    ) -> tuple[UUID | None, int | None]:
        if not isinstance(value, str):
            raise ValidationError([self.type_rule])
        if number := re.fullmatch(r"v?([0-9]{1,9})", value):
            return None, int(number[1])
        try:
            return UUID(value), None
        except ValueError:
            raise ValidationError([self.type_rule]) from None


class PastRunFilters(fields.StrictSchema):
    """The filters of past runs. Unknown and empty filters are refused: they would select other runs than intended."""

    since = fields.TimeField()
    until = fields.TimeField()
    assistant_id = fields.UuidField()
    assistant = fields.StrictString(
        min_length=1, max_length=255, metadata={"description": "Id, or the graph's name"}
    )
    graph_id = fields.StrictString(min_length=1, max_length=255)
    status = fields.ItemOrList(fields.OneOf(*ENDED_RUN_STATUSES), not_empty=True)
    metadata = fields.Filter()
    key_id = fields.StrictString(min_length=1, max_length=255)
    feedback = fields.Nested(FeedbackFilter)
    run_ids = fields.ListOf(fields.UuidField(), max_items=MOST_RUNS, not_empty=True)


class ReplayBody(fields.StrictSchema):
    example: ClassVar[dict[str, Any]] = {
        "preview": "candidate",
        "sample": 100,
        "where": {"status": "success"},
        "fail_on": "errors>0, cost>+20%",
    }

    revision = RevisionName(
        allow_none=True,
        metadata={"description": "Id or number (`v7`). Null: that of `preview`, or the latest one"},
    )
    preview = fields.StrictString(pattern=PREVIEW, max_length=MAX_PREVIEW, allow_none=True)
    sample = fields.StrictInteger(minimum=1, maximum=MOST_RUNS, load_default=100)
    seed = fields.StrictInteger(
        minimum=0,
        maximum=MAX_SEED,
        allow_none=True,
        metadata={"description": "Replays with the same seed select the same runs. Null: a random one"},
    )
    where = fields.Nested(PastRunFilters, load_default=dict)
    tools = fields.OneOf(
        RECORDED,
        LIVE,
        load_default=RECORDED,
        metadata={"description": "`live` is only for projects that allow it in langgraph.json"},
    )
    live_tools = fields.ListOf(
        fields.StrictString(min_length=1, max_length=MAX_TOOL_NAME),
        max_items=MAX_LIVE_TOOLS,
        load_default=list,
        metadata={
            "description": "Tools that may run if a call is not recorded, and that langgraph.json permits"
        },
    )
    models = fields.OneOf(LIVE, RECORDED, load_default=LIVE)
    network = fields.StrictBoolean(load_default=False)
    concurrency = fields.StrictInteger(minimum=1, maximum=MOST_CONCURRENT, load_default=2)
    max_tokens = fields.StrictInteger(minimum=1, maximum=10**12, allow_none=True)
    max_cost = fields.StrictNumber(minimum=0, maximum=10**9, allow_none=True)
    max_minutes = fields.StrictNumber(minimum=0, maximum=60 * 24 * 30, allow_none=True)
    fail_on = fields.StrictString(
        min_length=1,
        max_length=rules.MAX_TEXT,
        allow_none=True,
        metadata={"description": "Conditions that fail the replay. Null: it only reports"},
    )


class ReplayCases(fields.Page):
    outcome = fields.OneOf(*Outcome)


@bp.operation(
    "POST /v2/deployments/<deployment_id>/replays",
    "Replay past runs on a revision",
    role="deploy",
    body=ReplayBody,
    answer=records.REPLAY.schema,
    status=201,
    errors=(404,),
    idempotent=True,
)
def start_replay(deployment_id: UUID, body: dict[str, Any]) -> Response:
    """Execute a deployed revision on a random sample of past runs, and compare the results.

    Each run is executed again in a temporary copy of its thread. Threads, store, webhooks, figures and budgets of the
    deployment are not touched. Tool calls get their recorded results by default, and model calls are live.
    """
    revision_id, number = body.get("revision") or (None, None)
    with connection() as conn:
        keep = once(conn)
        name = deployments.lock(conn, caller().organization_id, deployment_id)["name"]
        revision = records.find_revision(
            conn, deployment_id, revision_id=revision_id, number=number, preview=body.get("preview")
        )
        _require_permission(body, revision["permitted_tools"])
        replay_id = records.create(conn, deployment_id, name, revision["id"], _request(body), by=actor(conn))
        row = records.get(conn, deployment_id, replay_id)
        record_action(
            conn,
            Action.REPLAY_CREATED,
            name,
            deployment_id=deployment_id,
            replay_id=replay_id,
            revision_number=revision["number"],
            sample=body["sample"],
        )
        answer = keep(jsonify(_shown(row)), 201)
    calls.announce(revision["id"], row["pool"])
    return answer


def _require_permission(body: dict[str, Any], permitted: str | list[str] | None) -> None:
    """Raise Invalid if a tool would be executed that `replay.tools` of langgraph.json does not permit.

    Otherwise a flag in a pipeline could send e-mails.
    """
    if permitted == LIVE:
        return
    if body["tools"] == LIVE:
        raise Invalid(NOT_LIVE, loc=("body", "tools"))
    named = permitted if isinstance(permitted, list) else []
    refused = [tool for tool in body["live_tools"] if tool not in named]
    if refused:
        text = f"the tool {refused[0]!r} may not be executed: `replay.tools` of the revision's langgraph.json does not permit it"
        raise Invalid(text, loc=("body", "live_tools"))


def _request(body: dict[str, Any]) -> Request:
    where = dict(body["where"])
    if where.get("metadata") == {}:
        raise Invalid("must have at least 1 key", loc=("body", "where", "metadata"))
    assistant = where.pop("assistant", None)
    if assistant is not None:
        if "assistant_id" in where:
            raise Invalid("must not be given with assistant_id", loc=("body", "where", "assistant"))
        where["assistant_id"] = assistants.named_id(assistant)
    seed, rule = body.get("seed"), body.get("fail_on")
    if rule is not None:
        rules.parse(rule)
    return Request(
        where=where,
        sample=body["sample"],
        seed=randbelow(MAX_SEED) if seed is None else seed,
        preview=None if body.get("revision") else body.get("preview"),
        tools=body["tools"],
        live_tools=body["live_tools"],
        models=body["models"],
        network=body["network"],
        concurrency=body["concurrency"],
        max_tokens=body.get("max_tokens"),
        max_cost=body.get("max_cost"),
        max_minutes=body.get("max_minutes"),
        rule=rule,
    )


@bp.operation(
    "GET /v2/deployments/<deployment_id>/replays",
    "List a deployment's replays, newest first",
    role="read",
    answer=resource_page_schema(records.REPLAY.schema),
    query=fields.Page,
    errors=(404,),
)
def list_replays(deployment_id: UUID, query: dict[str, Any]) -> Response:
    with connection() as conn:
        deployments.require(conn, caller().organization_id, deployment_id)
        rows = records.search(conn, deployment_id, **query)
    return resource_page([_shown(row) for row in rows], offset=query["offset"])


@bp.operation(
    "GET /v2/deployments/<deployment_id>/replays/<replay_id>",
    "Get a replay",
    role="read",
    answer=records.REPLAY.schema,
    errors=(404,),
)
def get_replay(deployment_id: UUID, replay_id: UUID) -> Response:
    with connection() as conn:
        deployments.require(conn, caller().organization_id, deployment_id)
        return jsonify(_shown(records.get(conn, deployment_id, replay_id)))


@bp.operation(
    "GET /v2/deployments/<deployment_id>/replays/<replay_id>/cases",
    "List the cases of a replay",
    role="read",
    answer=resource_page_schema(records.LISTED_CASE.schema),
    query=ReplayCases,
    errors=(404,),
)
def list_replay_cases(deployment_id: UUID, replay_id: UUID, query: dict[str, Any]) -> Response:
    """List the cases of a replay in the order in which they are executed, each with its figures and first difference."""
    with connection() as conn:
        deployments.require(conn, caller().organization_id, deployment_id)
        records.get(conn, deployment_id, replay_id)
        rows = records.cases(
            conn, replay_id, outcome=query.get("outcome"), limit=query["limit"], offset=query["offset"]
        )
    return resource_page([records.LISTED_CASE.show(row) for row in rows], offset=query["offset"])


@bp.operation(
    "GET /v2/deployments/<deployment_id>/replays/<replay_id>/cases/<position>",
    "Get a case of a replay",
    role="read",
    answer=records.CASE.schema,
    errors=(404,),
)
def get_replay_case(deployment_id: UUID, replay_id: UUID, position: str) -> Response:
    """Return a case with the whole comparison: figures, steps, differences and the report of both runs.

    Positions begin at 1.
    """
    number = whole_number(position)
    with connection() as conn:
        deployments.require(conn, caller().organization_id, deployment_id)
        records.get(conn, deployment_id, replay_id)
        if number is None:
            raise NotFound(f"The position of a case is a number, not {position!r}.")
        return jsonify(records.CASE.show(records.case(conn, replay_id, number)))


@bp.operation(
    "POST /v2/deployments/<deployment_id>/replays/<replay_id>/cancel",
    "Cancel a replay",
    role="deploy",
    answer=records.REPLAY.schema,
    errors=(404,),
)
def cancel_replay(deployment_id: UUID, replay_id: UUID) -> Response:
    """Cancel a replay and its runs. Cases that have ended keep their results. An ended replay is unchanged."""
    with connection() as conn:
        name = deployments.lock(conn, caller().organization_id, deployment_id)["name"]
        row = records.lock(conn, deployment_id, replay_id)
        stopped: list[Displaced] = []
        if row["ended_at"] is None:
            stopped = cases.end(conn, row, Status.CANCELLED)
            record_action(
                conn, Action.REPLAY_CANCELLED, name, deployment_id=deployment_id, replay_id=replay_id
            )
            row = records.get(conn, deployment_id, replay_id)
    signals.publish_cancels(stopped, settings().event_retention_seconds)
    return jsonify(_shown(row))


@bp.operation(
    "DELETE /v2/deployments/<deployment_id>/replays/<replay_id>",
    "Delete a replay",
    role="deploy",
    status=204,
    errors=(404,),
)
def delete_replay(deployment_id: UUID, replay_id: UUID) -> None:
    """Delete a replay with its cases and their threads. Its runs are cancelled."""
    with connection() as conn:
        name = deployments.lock(conn, caller().organization_id, deployment_id)["name"]
        records.lock(conn, deployment_id, replay_id)
        benches = records.remove(conn, [replay_id])
        record_action(conn, Action.REPLAY_DELETED, name, deployment_id=deployment_id, replay_id=replay_id)
    for bench_id in benches:
        forget(bench_id)
        with connection() as conn:
            stopped = deletion.stop_runs(conn, bench_id, reason="the replay was deleted")
        signals.publish_cancels(stopped, settings().event_retention_seconds)


def _shown(row: Row) -> dict[str, Any]:
    """Return a replay's record, with the address of its bench."""
    name = row["bench"]
    address = None if name is None else deployment_address(settings(), base_url(), name, row["mount_prefix"])
    return {**records.REPLAY.show(row), "address": address}
