"""The `checkpointer` of a langgraph.json: how long threads live. Where checkpoints are kept is not a project's choice."""

from __future__ import annotations

from typing import Any

from shared.store import MAX_TTL_MINUTES
from workers.builder.config.checks import check_keys, refused

STRATEGIES = ("delete", "keep_latest")
TTL_KEYS = ("strategy", "default_ttl", "sweep_interval_minutes", "sweep_limit")
REASON = "this server keeps checkpoints itself"


def read(config: Any) -> dict[str, Any]:
    """What it holds, checked; raises BuildFailed naming the key."""
    if not config:
        return {}
    if not isinstance(config, dict):
        raise refused("checkpointer", "must be an object")
    for name in config.keys() - {"ttl"}:
        if config[name]:
            raise refused(f"checkpointer.{name}", "not supported", REASON)
    return {"ttl": _ttl(config["ttl"])} if config.get("ttl") is not None else {}


def _ttl(ttl: Any) -> dict[str, Any]:
    """Without a default only threads that are given a time expire. Ours is the interval of sweeps: a minute."""
    check_keys("checkpointer.ttl", ttl, TTL_KEYS)
    strategy = ttl.get("strategy", "delete")
    if strategy not in STRATEGIES:
        raise refused("checkpointer.ttl.strategy", f"must be one of {', '.join(STRATEGIES)}")
    for name in ("default_ttl", "sweep_interval_minutes", "sweep_limit"):
        value = ttl.get(name)
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= MAX_TTL_MINUTES):
            raise refused(f"checkpointer.ttl.{name}", "must be a number, and not below 0")
    return {"strategy": strategy, "default_ttl": ttl.get("default_ttl")}
