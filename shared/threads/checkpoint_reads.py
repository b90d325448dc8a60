"""Reading checkpoints for graph hosts: the newest with each claimed run, and answers to their requests.

`workers/graph_host/checkpoints/storage.py` describes requests and answers. A checkpoint is read whole, with its blobs
and writes, and never decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection

from shared.infra.json_text import readable
from shared.infra.postgres import Driver, dumps
from shared.threads import checkpoints

# Size at which a list answer is cut and marked as incomplete, because the size of a frame is limited.
MAX_ANSWER_BYTES = 16 * 1024 * 1024

Key = tuple[UUID, UUID]

# Selects a checkpoint as one row, with its blobs and writes as arrays. LIMIT 1 tells the planner that each lookup finds
# one blob. Without it, the plan may read all blobs that the thread has ever had.
_RECORD = """
SELECT c.deployment_id, c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.type, c.data,
       c.metadata::text, b.channels, b.versions, b.types, b.data, w.tasks, w.channels, w.types, w.data
FROM {source} AS c
LEFT JOIN LATERAL (
    SELECT array_agg(blob.channel) AS channels, array_agg(blob.version) AS versions,
           array_agg(blob.type) AS types, array_agg(blob.data) AS data
    FROM json_each_text(c.blobs) AS wanted (channel, version)
    CROSS JOIN LATERAL (
        SELECT * FROM checkpoint_blob AS one
        WHERE one.deployment_id = c.deployment_id AND one.thread_id = c.thread_id
            AND one.checkpoint_ns = c.checkpoint_ns AND one.channel = wanted.channel
            AND one.version = wanted.version{of_blobs}
        LIMIT 1
    ) AS blob
) AS b ON c.blobs::text <> '{{}}'
LEFT JOIN LATERAL (
    SELECT array_agg(task_id) AS tasks, array_agg(channel) AS channels, array_agg(type) AS types,
           array_agg(data) AS data
    FROM (
        SELECT task_id, channel, type, data FROM checkpoint_write AS own
        WHERE own.deployment_id = c.deployment_id AND own.thread_id = c.thread_id
            AND own.checkpoint_ns = c.checkpoint_ns AND own.checkpoint_id = c.checkpoint_id{of_writes}
        ORDER BY task_path COLLATE "C", task_id COLLATE "C", idx
    ) AS ordered
) AS w ON true
"""

NEWEST = _RECORD.format(
    source="""unnest(%(deployments)s::uuid[], %(threads)s::uuid[]) AS wanted (deployment_id, thread_id)
CROSS JOIN LATERAL (
    SELECT * FROM checkpoint AS one
    WHERE one.deployment_id = wanted.deployment_id AND one.thread_id = wanted.thread_id
        AND one.checkpoint_ns = ''
    ORDER BY one.checkpoint_id DESC LIMIT 1
)""",
    of_blobs="",
    of_writes="",
)
NEWEST_COLUMNS = {
    "deployment_id": "uuid", "thread_id": "uuid", "checkpoint_ns": "text", "checkpoint_id": "text",
    "parent_checkpoint_id": "text", "type": "text", "data": "bytea", "metadata": "text", "channels": "text[]",
    "versions": "text[]", "types": "text[]", "blobs": "bytea[]", "tasks": "text[]", "write_channels": "text[]",
    "write_types": "text[]", "writes": "bytea[]",
}  # fmt: skip


def newest(conn: Connection | Driver, keys: Sequence[Key]) -> dict[Key, list[bytes]]:
    """Return the newest root checkpoint of each (deployment, thread) that has one, in the format of `answer`."""
    parameters = {"deployments": [key[0] for key in keys], "threads": [key[1] for key in keys]}
    own: Any = conn.connection.driver_connection if isinstance(conn, Connection) else conn
    return by_thread(own.execute(NEWEST, parameters))


def by_thread(rows: Iterable[Sequence[Any]]) -> dict[Key, list[bytes]]:
    """Return the checkpoints in rows of `NEWEST` by (deployment, thread), in the format of `answer`."""
    found = {}
    for row in rows:
        record, blobs = _record(row)
        found[row[0], row[1]] = [orjson.dumps({"found": True, **record}), *blobs]
    return found


def answer(
    conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], *, thread_id: UUID | None
) -> list[bytes]:
    """Return the parts of the answer to a host's ASK frame.

    The host may access only `thread_id`, or all threads of the deployment if that is None.
    """
    op = _OPERATIONS.get(ask["op"])
    if op is None:
        return [orjson.dumps({"error": f"unknown operation '{ask['op']}'"})]
    named = [ask[key] for key in ("thread_id", "source", "target") if key in ask]
    named += ask.get("thread_ids", ())
    if thread_id is not None and any(name != str(thread_id) for name in named):
        return [orjson.dumps({"error": "a run may reach its own thread's checkpoints only"})]
    return op(conn, deployment_id, ask, thread_id)


def _get_tuple(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None) -> list[bytes]:
    rows = _select(conn, deployment_id, {**ask, "before": None, "filter": {}, "limit": 1})
    if not rows:
        return [b'{"found":false}']
    record, blobs = _record(rows[0])
    return [orjson.dumps({"found": True, **record}), *blobs]


def _list(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None) -> list[bytes]:
    limit = int(ask["limit"])
    return _page(_select(conn, deployment_id, {**ask, "limit": limit + 1}), limit)


def _page(rows: Sequence[Any], limit: int) -> list[bytes]:
    """Return the answer for the first rows, up to `limit` rows and MAX_ANSWER_BYTES."""
    records, parts, size = [], [], 0
    for row in rows[:limit]:
        record, blobs = _record(row)
        size += sum(map(len, blobs))
        if records and size > MAX_ANSWER_BYTES:
            break
        records.append(record)
        parts += blobs
    return [orjson.dumps({"items": records, "more": len(rows) > len(records)}), *parts]


# The chain of parents ends at a checkpoint with a blob for each of the channels: such a blob includes all older values.
ANCESTORS = (
    """
WITH RECURSIVE chain AS (
    (SELECT checkpoint_id, parent_checkpoint_id, blobs, 1 AS depth FROM checkpoint
     WHERE deployment_id = %(deployment)s AND thread_id = %(thread)s AND checkpoint_ns = %(checkpoint_ns)s
       AND checkpoint_id = coalesce(%(checkpoint_id)s, (
           SELECT max(checkpoint_id) FROM checkpoint AS newest WHERE newest.deployment_id = %(deployment)s
               AND newest.thread_id = %(thread)s AND newest.checkpoint_ns = %(checkpoint_ns)s)))
    UNION ALL
    SELECT parent.checkpoint_id, parent.parent_checkpoint_id, parent.blobs, chain.depth + 1
    FROM chain JOIN checkpoint AS parent
        ON parent.deployment_id = %(deployment)s AND parent.thread_id = %(thread)s
        AND parent.checkpoint_ns = %(checkpoint_ns)s AND parent.checkpoint_id = chain.parent_checkpoint_id
    WHERE chain.depth < %(limit)s AND NOT CAST({blobs} AS jsonb) ?& %(channels)s
)
""".format(blobs=readable("chain.blobs"))
    + _RECORD.format(
        source="""(
    SELECT one.*, chain.depth FROM chain JOIN checkpoint AS one
        ON one.deployment_id = %(deployment)s AND one.thread_id = %(thread)s
        AND one.checkpoint_ns = %(checkpoint_ns)s AND one.checkpoint_id = chain.checkpoint_id
)""",
        of_blobs=" AND wanted.channel = ANY(%(channels)s)",
        of_writes=" AND own.channel = ANY(%(channels)s)",
    )
    + "ORDER BY c.depth"
)


def _ancestors(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None) -> list[bytes]:
    """Return a checkpoint and its ancestors, nearest first, with the blobs and writes of the requested channels."""
    limit = int(ask["limit"])
    parameters = {
        "deployment": deployment_id,
        "thread": UUID(ask["thread_id"]),
        "checkpoint_ns": ask["checkpoint_ns"],
        "checkpoint_id": ask["checkpoint_id"],
        "channels": list(ask["channels"]),
        "limit": limit + 1,
    }
    return _page(conn.exec_driver_sql(ANCESTORS, parameters).all(), limit)


def _select(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any]) -> Sequence[Any]:
    conditions = ["deployment_id = %(deployment)s", "thread_id = %(thread)s"]
    parameters: dict[str, Any] = {
        "deployment": deployment_id,
        "thread": UUID(ask["thread_id"]),
        "limit": ask["limit"],
    }
    for name, condition in {
        "checkpoint_ns": "checkpoint_ns = %(checkpoint_ns)s",
        "checkpoint_id": "checkpoint_id = %(checkpoint_id)s",
        "before": "checkpoint_id < %(before)s",
    }.items():
        if ask.get(name) is not None:
            conditions.append(condition)
            parameters[name] = ask[name]
    if ask["filter"]:
        conditions.append("metadata @> %(filter)s::jsonb")
        parameters["filter"] = dumps(ask["filter"])
    source = f"""(
    SELECT * FROM checkpoint WHERE {" AND ".join(conditions)} ORDER BY checkpoint_id DESC LIMIT %(limit)s
)"""
    statement = _RECORD.format(source=source, of_blobs="", of_writes="") + "ORDER BY c.checkpoint_id DESC"
    return conn.exec_driver_sql(statement, parameters).all()


def _record(row: Any) -> tuple[dict[str, Any], list[bytes]]:
    (_, thread_id, ns, id, parent_id, type_, data, metadata, *arrays) = row
    channels, versions, types, blobs, tasks, w_channels, w_types, w_data = (array or [] for array in arrays)
    record = {
        "thread_id": str(thread_id),
        "checkpoint_ns": ns,
        "checkpoint_id": id,
        "parent_checkpoint_id": parent_id,
        "type": type_,
        "metadata": orjson.Fragment(metadata),
        "blobs": list(zip(channels, versions, types, strict=True)),
        "writes": list(zip(tasks, w_channels, w_types, strict=True)),
    }
    return record, [data, *blobs, *w_data]


def _delete_thread(
    conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None
) -> list[bytes]:
    checkpoints.delete_threads(conn, deployment_id, [UUID(ask["thread_id"])])
    return [b"{}"]


def _delete_for_runs(
    conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], thread_id: UUID | None
) -> list[bytes]:
    checkpoints.delete_for_runs(conn, deployment_id, ask["run_ids"], thread_id=thread_id)
    return [b"{}"]


def _copy_thread(
    conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None
) -> list[bytes]:
    checkpoints.copy(conn, deployment_id, UUID(ask["source"]), UUID(ask["target"]))
    return [b"{}"]


def _prune(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None) -> list[bytes]:
    threads = [UUID(name) for name in ask["thread_ids"]]
    if ask["strategy"] == "keep_latest":
        checkpoints.keep_latest(conn, deployment_id, threads)
    elif ask["strategy"] == "delete":
        checkpoints.delete_threads(conn, deployment_id, threads)
    else:
        return [orjson.dumps({"error": f"unknown strategy '{ask['strategy']}'"})]
    return [b"{}"]


_OPERATIONS = {
    "get_tuple": _get_tuple,
    "list": _list,
    "ancestors": _ancestors,
    "delete_thread": _delete_thread,
    "delete_for_runs": _delete_for_runs,
    "copy_thread": _copy_thread,
    "prune": _prune,
}
