"""The `checkpointer` key of a langgraph.json: the lifetime of threads, and the classes that checkpoints may contain.

A project cannot choose another checkpoint storage. Fenced writes, rollback, thread copies and reading states without
user code depend on the service's own saver.
"""

from __future__ import annotations

from typing import Any

from shared.store import MAX_TTL_MINUTES
from workers.builder.config.checks import check_keys, refused

STRATEGIES = ("delete", "keep_latest")
TTL_KEYS = ("strategy", "default_ttl", "sweep_interval_minutes", "sweep_limit")
SERDE_KEYS = ("allowed_msgpack_modules", "allowed_json_modules", "pickle_fallback")
KEPT = "allowed_msgpack_modules"
MAX_CLASSES = 1000
REASON = "this server keeps checkpoints itself"


def read(config: Any) -> dict[str, Any]:
    """Return the validated `checkpointer` object. Raises BuildFailed, naming the key."""
    if not config:
        return {}
    if not isinstance(config, dict):
        raise refused("checkpointer", "must be an object")
    for name in config.keys() - {"ttl", "serde"}:
        if config[name] and (name, config[name]) != ("backend", "default"):
            raise refused(f"checkpointer.{name}", "not supported", REASON)
    found = {"ttl": _ttl(config["ttl"])} if config.get("ttl") is not None else {}
    serde = _serde(config["serde"]) if config.get("serde") is not None else {}
    return {**found, **({"serde": serde} if serde else {})}


def _serde(serde: Any) -> dict[str, Any]:
    """Return the settings of LangGraph's serializer: allowed classes by module and name, or True for any class.

    `allowed_json_modules` is validated and dropped. It concerns a JSON format of older LangGraph releases, which this
    service never reads.
    """
    check_keys("checkpointer.serde", serde, SERDE_KEYS)
    if serde.get("pickle_fallback"):
        raise refused(
            "checkpointer.serde.pickle_fallback",
            "not supported",
            "to read a pickle is to run whatever is in it; name your classes in allowed_msgpack_modules",
        )
    found = {name: _classes(f"checkpointer.serde.{name}", serde.get(name)) for name in SERDE_KEYS[:2]}
    return {KEPT: found[KEPT]} if found[KEPT] else {}


def notes(config: Any) -> list[str]:
    """Return a note for each setting of a validated `checkpointer` object that has no effect here."""
    serde = (config or {}).get("serde") or {}
    if not serde.get("allowed_json_modules"):
        return []
    return [
        "checkpointer.serde.allowed_json_modules: has no meaning here and is ignored: checkpoints hold no such JSON"
    ]


def _classes(key: str, classes: Any) -> list[list[str]] | bool:
    if classes is None or isinstance(classes, bool):
        return bool(classes)
    if not isinstance(classes, list) or len(classes) > MAX_CLASSES or not all(map(_is_class, classes)):
        raise refused(key, 'must be true or an array of classes like ["my_agent.models", "State"]')
    return classes


def _is_class(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) > 1 and all(isinstance(part, str) and part for part in value)
    )


def _ttl(ttl: Any) -> dict[str, Any]:
    """Return the validated expiry settings. Without `default_ttl` only threads with a TTL of their own expire.

    The sweep settings are validated and dropped: this service sweeps every minute.
    """
    check_keys("checkpointer.ttl", ttl, TTL_KEYS)
    strategy = ttl.get("strategy", "delete")
    if strategy not in STRATEGIES:
        raise refused("checkpointer.ttl.strategy", f"must be one of {', '.join(STRATEGIES)}")
    for name in ("default_ttl", "sweep_interval_minutes", "sweep_limit"):
        value = ttl.get(name)
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= MAX_TTL_MINUTES):
            raise refused(f"checkpointer.ttl.{name}", "must be a number, and not below 0")
    return {"strategy": strategy, "default_ttl": ttl.get("default_ttl")}
