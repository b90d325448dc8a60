"""Lookups of graph hosts (ASK frames) in the database, on behalf of a run or a call: checkpoints and store items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy.exc import DBAPIError

from shared import store
from shared.errors import Fenced, Refused
from shared.hosts.pending_calls import HostCall
from shared.infra.postgres import connection, dumps
from shared.runs import claims
from shared.runs.claims import Claimed
from shared.threads import checkpoint_reads

READS = ("get_tuple", "list", "ancestors")


def answer_run(run: Claimed, ask: Mapping[str, Any]) -> list[bytes]:
    """Execute a lookup of a run and return the encoded results.

    Raises Fenced if it writes to the store and the run has another owner by now. Raises Unavailable.
    """
    if ask["op"] == "store":
        return _store_results(run.deployment_id, ask["ops"], run)
    with connection() as conn:
        return checkpoint_reads.answer(conn, run.deployment_id, ask, thread_id=run.thread_id)


def answer_call(call: HostCall, ask: Mapping[str, Any]) -> list[bytes]:
    """Execute a lookup of a call, which may only read, and only if it is about a thread. Raises Unavailable."""
    if call.thread_id is None:
        return [dumps({"error": "a call without a thread may look up nothing"}).encode()]
    if ask["op"] == "store":
        if _writes(ask["ops"]):
            return [dumps({"error": "a question may not write to the store"}).encode()]
        return _store_results(call.deployment_id, ask["ops"], None)
    if ask["op"] not in READS:
        return [dumps({"error": f"a question may not {ask['op']}"}).encode()]
    with connection() as conn:
        return checkpoint_reads.answer(conn, call.deployment_id, ask, thread_id=call.thread_id)


def _store_results(deployment_id: UUID, ops: Sequence[Mapping[str, Any]], run: Claimed | None) -> list[bytes]:
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
