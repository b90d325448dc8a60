"""Responses with JSON, ETags, pages of lists, and selected fields."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from flask import Response, jsonify, request
from flask.json.provider import JSONProvider

from shared.infra.postgres import LARGE
from shared.infra.system import let_others_run
from shared.records import COUNT, JsonSchema, listed, record

JSON_OPTIONS = orjson.OPT_NON_STR_KEYS


class Orjson(JSONProvider):
    """JSON provider based on orjson: compact UTF-8, with support for UUIDs, datetimes and dataclasses."""

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        return orjson.dumps(obj, option=JSON_OPTIONS).decode()

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        return orjson.loads(s)

    def response(self, *args: Any, **kwargs: Any) -> Response:
        body = orjson.dumps(self._prepare_response_obj(args, kwargs), option=JSON_OPTIONS)
        if len(body) > LARGE:
            let_others_run()
        return Response(body, mimetype="application/json")


def with_etag(record: Mapping[str, Any]) -> Response:
    """Return a record with a strong ETag: a digest of its bytes, so that every change alters it."""
    response = jsonify(record)
    response.set_etag(hashlib.blake2b(response.get_data(), digest_size=16).hexdigest())
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def matches_etag(response: Response) -> bool:
    """Return whether the caller holds exactly this record, according to its If-None-Match."""
    tag, _ = response.get_etag()
    return tag is not None and request.if_none_match.contains_weak(tag)


def conditional(record: Mapping[str, Any]) -> Response:
    """Return a record with its ETag, or a 304 if the caller holds it."""
    response = with_etag(record)
    response.make_conditional(request)
    return response


PAGE_HEADERS = PAGE_TOTAL, PAGE_NEXT = "X-Pagination-Total", "X-Pagination-Next"


def page(rows: list[Any], *, offset: int, limit: int, total: int) -> Response:
    """Return a page of a list. Headers hold the total and, unless this is the last page, the offset of the next."""
    response = jsonify(rows)
    response.headers[PAGE_TOTAL] = str(total)
    if offset + len(rows) < total and rows:
        response.headers[PAGE_NEXT] = str(offset + limit)
    return response


def select_fields(rows: list[dict[str, Any]], select: list[str] | None) -> list[dict[str, Any]]:
    """Return the records with only the fields in `select`; without `select`, unchanged."""
    if not select:
        return rows
    return [{name: row[name] for name in select if name in row} for row in rows]


def resource_page_schema(item: JsonSchema) -> JsonSchema:
    """Return the schema of a page of a list. `offset` is the offset of the next page."""
    return record(f"{item['title']}Page", resources=listed(item), offset=COUNT)


def resource_page(records: Sequence[Mapping[str, Any]], *, offset: int) -> Response:
    """Return a page of a list. `offset` in the response is the offset of the next page."""
    return jsonify(resources=records, offset=offset + len(records))
