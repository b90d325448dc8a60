"""The builder's list of routes that an app could shadow equals the service's routes."""

from __future__ import annotations

import re

from flask import Flask

from workers.builder import built_in_routes


def test_every_route_of_a_deployment_that_asks_who_calls_is_on_the_builder_s_list(app: Flask) -> None:
    there: dict[str, set[str]] = {}
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<path:\w+>", "{*}", rule.rule.removeprefix("/d/<deployment>"))
        path = re.sub(r"<[^>]+>", "{}", path)
        if rule.rule.startswith("/d/<deployment>") and path not in built_in_routes.PUBLIC:
            methods = {"WEBSOCKET"} if rule.websocket else (rule.methods or set()) - {"HEAD", "OPTIONS"}
            there.setdefault(path, set()).update(methods)

    assert {path: set(methods) for methods, path in built_in_routes.table()} == there
