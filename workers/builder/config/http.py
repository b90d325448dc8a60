"""The `http` of a langgraph.json: which of a deployment's interfaces are off. Nothing else of it is served."""

from __future__ import annotations

from typing import Any

from workers.builder.config.checks import refused

SWITCHES = ("disable_mcp", "disable_a2a")


def read(config: Any) -> dict[str, bool]:
    """The switches it sets; raises BuildFailed naming a key that is not served."""
    if not config:
        return {}
    if not isinstance(config, dict):
        raise refused("http", "must be an object")
    for name, value in config.items():
        if name not in SWITCHES and value:
            raise refused(f"http.{name}", "not supported: this server serves no routes of a project's own")
        if name in SWITCHES and not isinstance(value, bool):
            raise refused(f"http.{name}", "must be true or false")
    return {name: config[name] for name in SWITCHES if name in config}
