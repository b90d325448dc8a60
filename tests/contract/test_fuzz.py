"""Whatever a body holds, the answer is never a 5xx."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import orjson
import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tests.support.factories as make
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra import redis
from web.fields import Schema

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "\x00", "*", "..", "0" * 300, str(uuid4()), "asc", "create", "values", "2026-13-45"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


def operations(app: Flask) -> Iterator[tuple[str, str, list[str]]]:
    """Every route that takes a body: its method, a path, and the fields it knows."""
    for rule in app.url_map.iter_rules():
        described = getattr(app.view_functions[rule.endpoint], "__operation__", None)
        schema: type[Schema] | None = described.body if described else None
        if schema is None:
            continue
        path = re.sub(r"<deployment>", "chat", rule.rule)
        path = re.sub(r"<[^>]*?(\w+)>", lambda match: str(uuid4()), path)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            yield method, path, sorted(schema().fields)


@pytest.fixture
def chat(client: FlaskClient, fake_redis: Any) -> FlaskClient:
    redis.use(fake_redis)
    make.deployment(organization_id=DEFAULT_ORGANIZATION_ID, name="chat")
    return client


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_body_is_answered_with_a_5xx(app: Flask, chat: FlaskClient, data: st.DataObject) -> None:
    method, path, names = data.draw(st.sampled_from(list(operations(app))))
    body = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4) | VALUES)
    response = chat.open(path, method=method, data=orjson.dumps(body))
    assert response.status_code < 500, response.text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), raw=st.binary(max_size=200))
def test_no_bytes_are_answered_with_a_5xx(
    app: Flask, chat: FlaskClient, data: st.DataObject, raw: bytes
) -> None:
    method, path, _ = data.draw(st.sampled_from(list(operations(app))))
    assert chat.open(path, method=method, data=raw).status_code < 500


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=40), query=st.text(max_size=40))
def test_no_address_is_answered_with_a_5xx(chat: FlaskClient, text: str, query: str) -> None:
    text = quote(text)
    for path in (f"/d/chat/{text}", f"/d/{text}/threads/{text}", f"/v2/deployments/{text}"):
        response = chat.get(path, query_string={"limit": query, "offset": query, "select": query})
        assert response.status_code < 500, response.text
