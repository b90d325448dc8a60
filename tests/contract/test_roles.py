"""Required role and stream slot of each route. Every route of the app must be in the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args
from uuid import uuid4

from flask import Flask
from flask.testing import FlaskClient

from shared.access.api_keys import ROLES
from tests.contract.conftest import caller, new_key
from tests.support.routes import CALLS
from web.schemas import operations


def routes(app: Flask) -> Iterator[tuple[str, str]]:
    for rule in app.url_map.iter_rules():
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            yield method, rule.rule


def path_of(rule: str) -> str:
    return re.sub(r"<[^>]+>", lambda _: str(uuid4()), rule)


def test_every_route_is_in_the_table_and_has_its_role_and_slot(app: Flask) -> None:
    assert get_args(operations.Role) == ("open", *ROLES)
    assert set(routes(app)) == set(CALLS), "say in the table which role a new route needs"
    for rule in app.url_map.iter_rules():
        stated = operations.of_view(app.view_functions[rule.endpoint])
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            call = CALLS[method, rule.rule]
            assert (method, rule.rule, stated.role, stated.long) == (method, rule.rule, call.role, call.slot)
        assert stated.long is True or not stated.sse, rule.rule


def test_every_route_but_the_open_ones_needs_a_key(app: Flask, anonymous: FlaskClient) -> None:
    missing = {"detail": "Missing API key: send it as the header X-Api-Key"}
    unknown = caller(app, "ryd_12345678_" + "A" * 43)
    for (method, rule), call in CALLS.items():
        response = anonymous.open(path_of(rule), method=method)
        if call.role == "open":
            assert response.status_code != 401, (method, rule)
            continue
        assert (method, rule, response.status_code, response.json) == (method, rule, 401, missing)
        assert unknown.open(path_of(rule), method=method).status_code in (401, 429), (method, rule)


def test_a_key_may_do_what_its_role_may_and_no_more(app: Flask) -> None:
    """The lowest role of each route may call it, and the next lower role may not. Roles include those before them."""
    keys = {role: caller(app, new_key(role)) for role in ROLES}
    for key in keys.values():
        key.environ_base["HTTP_CONTENT_TYPE"] = "application/json"
    for (method, rule), call in CALLS.items():
        if call.role != "open":
            lowest = ROLES.index(call.role)
            for role in ROLES[max(lowest - 1, 0) : lowest + 1]:
                status = keys[role].open(path_of(rule), method=method).status_code
                assert (status != 403) is (role == call.role), (role, method, rule, status)
                assert status not in (401, 429), (role, method, rule, status)


def test_roles_are_ordered(app: Flask) -> None:
    for role in ROLES:
        key = caller(app, new_key(role))
        statuses = [key.get(path).status_code for path in ("/v2/me", "/v2/keys")]
        assert (role, statuses) == (role, [200, 200 if role in ("admin", "operator") else 403])
        created = key.post("/v2/organizations", json={"name": "acme"}).status_code
        assert (role, created) == (role, 201 if role == "operator" else 403)
