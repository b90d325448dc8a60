"""The `store` key of a langgraph.json: the TTL of store items, and the index for semantic search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared import store_vectors
from shared.infra.postgres import connection
from workers.builder.config.checks import check_keys, refused

MAX_DIMS = 16_000  # limit of pgvector's `vector` type
KNOWN = {
    "store": ("ttl", "index"),
    "store.ttl": ("default_ttl", "refresh_on_read", "sweep_interval_minutes"),
    "store.index": ("dims", "embed", "fields"),
}


def read(config: Any) -> dict[str, Any]:
    """Return the validated `ttl` and `index` that are present. Raises BuildFailed, naming the key."""
    if config is None:
        return {}
    check_keys("store", config, KNOWN["store"])
    found: dict[str, Any] = {}
    if config.get("ttl") is not None:
        found["ttl"] = _ttl(config["ttl"])
    if config.get("index") is not None:
        found["index"] = _index(config["index"])
    return found


def require_vectors(config: Mapping[str, Any]) -> None:
    """Raise BuildFailed if an index is configured but the database has no pgvector."""
    if not config.get("index"):
        return
    with connection() as conn:
        if not store_vectors.is_prepared(conn):
            raise refused(
                "store.index",
                "this installation's PostgreSQL has no 'vector' extension: install pgvector there"
                " and run the release step again, or leave the index out",
            )


def _ttl(ttl: Any) -> dict[str, Any]:
    check_keys("store.ttl", ttl, KNOWN["store.ttl"])
    for name in ("default_ttl", "sweep_interval_minutes"):
        value = ttl.get(name)
        if value is not None and (type(value) not in (int, float) or value < 0):
            raise refused(f"store.ttl.{name}", "must be a number of minutes")
    if not isinstance(ttl.get("refresh_on_read", True), bool):
        raise refused("store.ttl.refresh_on_read", "must be true or false")
    return {"default_ttl": ttl.get("default_ttl"), "refresh_on_read": ttl.get("refresh_on_read", True)}


def _index(index: Any) -> dict[str, Any]:
    check_keys("store.index", index, KNOWN["store.index"])
    dims, embed, fields = index.get("dims"), index.get("embed"), index.get("fields")
    if type(dims) is not int or not 0 < dims <= MAX_DIMS:
        raise refused("store.index.dims", f"must be a number between 1 and {MAX_DIMS}")
    if not isinstance(embed, str) or ":" not in embed:
        raise refused("store.index.embed", 'must be "provider:model" or "./file.py:function"')
    fields = ["$"] if fields is None else fields
    if not isinstance(fields, list) or not fields or not all(isinstance(path, str) for path in fields):
        raise refused("store.index.fields", "must be an array of paths")
    return {"dims": dims, "embed": embed, "fields": fields}
