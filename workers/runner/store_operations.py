"""Store operations of graph hosts, executed on behalf of a run or a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy.exc import DBAPIError

from shared import store
from shared.errors import Fenced, Refused
from shared.infra.postgres import connection, dumps
from shared.runs import claims
from shared.runs.claims import Claimed


def answer_run(run: Claimed, ask: Mapping[str, Any]) -> list[bytes]:
    """Execute a batch of store operations of a run and return the encoded results.

    Raises Fenced if the batch writes and the run has another owner by now. Raises Unavailable.
    """
    return _answered(run.deployment_id, ask["ops"], run)


def answer_question(deployment_id: UUID, ask: Mapping[str, Any]) -> list[bytes]:
    """Execute a batch of store operations of a query, which may only read. Raises Unavailable."""
    if _writes(ask["ops"]):
        return [dumps({"error": "a question may not write to the store"}).encode()]
    return _answered(deployment_id, ask["ops"], None)


def _answered(deployment_id: UUID, ops: Sequence[Mapping[str, Any]], run: Claimed | None) -> list[bytes]:
    try:
        with connection() as conn:
            if run is not None and _writes(ops) and not claims.hold(conn, run):
                raise Fenced("its store operations are refused")
            return [orjson.dumps(store.answer(conn, deployment_id, ops))]
    except Refused as error:
        return [dumps({"error": error.message}).encode()]
    except DBAPIError as error:  # PostgreSQL refuses a value; without an answer the graph would wait forever
        return [dumps({"error": f"the database refuses it: {error.orig}"}).encode()]


def _writes(ops: Sequence[Mapping[str, Any]]) -> bool:
    return any(op["op"] == "put" for op in ops)
