"""The `store` of a langgraph.json: how long items live, and the index that finds them by meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared import store_vectors
from shared.errors import BuildFailed
from shared.infra.postgres import connection

STEP = "configuration"
MAX_DIMS = 16_000  # of a vector in PostgreSQL
KNOWN = {
    "store": ("ttl", "index"),
    "store.ttl": ("default_ttl", "refresh_on_read", "sweep_interval_minutes"),
    "store.index": ("dims", "embed", "fields"),
}


def read(told: Any) -> dict[str, Any]:
    """What it says, checked; raises BuildFailed naming the key."""
    if told is None:
        return {}
    _check_keys("store", told)
    found: dict[str, Any] = {}
    if told.get("ttl") is not None:
        found["ttl"] = _ttl(told["ttl"])
    if told.get("index") is not None:
        found["index"] = _index(told["index"])
    return found


def require_vectors(config: Mapping[str, Any]) -> None:
    """Refuse an index where the database cannot keep one."""
    if not config.get("index"):
        return
    with connection() as conn:
        if not store_vectors.is_prepared(conn):
            raise BuildFailed(
                STEP,
                "store.index: this installation's PostgreSQL has no 'vector' extension: install pgvector there"
                " and run the release step again, or leave the index out",
            )


def _check_keys(key: str, told: Any) -> None:
    if not isinstance(told, dict):
        raise _refused(key, "must be an object")
    for name in told:
        if name not in KNOWN[key]:
            raise _refused(f"{key}.{name}", "not known")


def _ttl(told: Any) -> dict[str, Any]:
    _check_keys("store.ttl", told)
    for name in ("default_ttl", "sweep_interval_minutes"):
        value = told.get(name)
        if value is not None and (type(value) not in (int, float) or value < 0):
            raise _refused(f"store.ttl.{name}", "must be a number of minutes")
    if not isinstance(told.get("refresh_on_read", True), bool):
        raise _refused("store.ttl.refresh_on_read", "must be true or false")
    return {"default_ttl": told.get("default_ttl"), "refresh_on_read": told.get("refresh_on_read", True)}


def _index(told: Any) -> dict[str, Any]:
    _check_keys("store.index", told)
    dims, embed, fields = told.get("dims"), told.get("embed"), told.get("fields", ["$"])
    if type(dims) is not int or not 0 < dims <= MAX_DIMS:
        raise _refused("store.index.dims", f"must be a number between 1 and {MAX_DIMS}")
    if not isinstance(embed, str) or ":" not in embed:
        raise _refused("store.index.embed", 'must be "provider:model" or "./file.py:function"')
    if not isinstance(fields, list) or not fields or not all(isinstance(path, str) for path in fields):
        raise _refused("store.index.fields", "must be an array of paths")
    return {"dims": dims, "embed": embed, "fields": fields}


def _refused(key: str, reason: str) -> BuildFailed:
    return BuildFailed(STEP, f"{key}: {reason}")
