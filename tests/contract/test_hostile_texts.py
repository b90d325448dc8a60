"""Texts that PostgreSQL's text and jsonb types reject, in every stored or searched field, never cause a 5xx.

Requests are generated from the API document, so documenting a new field covers it. Rows with values from graphs are
written as a runner writes them, then read and searched through every route.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import orjson
import pytest
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.errors import Conflict
from shared.hosts import calls
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.protocol import watching
from tests.contract.bad_input import good, good_query
from tests.contract.conftest import Api, ControlPlane
from tests.contract.documented import (
    Described,
    Document,
    Schema,
    deployment_records,
    document_of,
    records,
    types,
)
from tests.support.acting import Actor
from tests.support.hooked import outbox

NUL = "a\x00b"
NUL_ESCAPED = b"\\u0000"
MARK = "a-hostile-value"
# JSON texts in place of a value, some of which PostgreSQL cannot cast.
TEXTS = (
    rb'"a\u0000b\\u0000"',
    rb'{"\u0000":["\u0000"]}',
    b"1e-400000",
    b"9" * 400,
)
# Texts that are not valid JSON anywhere in a body.
NO_JSON = (
    rb'"\ud800"',
    rb'"\udc00\ud800"',
    rb'{"\ud800":1}',
    b"NaN",
    b"-Infinity",
    b"1e400000",
    b'"\xff"',
    b'"\xed\xa0\x80"',
)
WORDS = ("a%00b", "%5B%22%5Cu0000%22%5D", "%7B%22%5Cu0000%22:1%7D", "%ED%A0%80", "1e400000")
# Valid values of required fields, so that a request fails only because of the hostile text.
ACCEPTED = {b"assistant_id": b"agent", b"graph_id": b"agent", b"schedule": b"0 0 1 1 *", b"key": b"k"}
STATE = {"messages": [{"content": NUL, "\x00": ["\\u0000", "\x00\x00"]}], "topic": "billing", NUL: NUL}
SEARCHES: list[tuple[str, Any]] = [
    ("/threads/search", {}),
    ("/threads/search", {"values": {"topic": "billing"}}),
    ("/threads/search", {"values": {"topic": {"deep": 1}}}),
    ("/threads/search", {"values": {"messages": []}, "metadata": {"a": 1}}),
    ("/threads/count", {"values": {"topic": "billing"}}),
    ("/assistants/search", {}),
    ("/assistants/count", {}),
    ("/runs/search", {"error": "ValueError"}),
    ("/runs/search", {"status": ["error", "success"], "metadata": {"a": 1}}),
    ("/runs/crons/search", {}),
    ("/runs/crons/count", {}),
    ("/store/items/search", {"namespace_prefix": ["a"], "filter": {"a": 1}}),
    ("/store/namespaces", {}),
    ("/webhooks/search", {}),
]


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace calls to graph hosts, of which there are none, by an immediate error."""

    def call(*_: Any, **__: Any) -> bytes:
        raise Conflict("no graph host")

    monkeypatch.setattr(calls, "call", call)


def places(document: Document, schema: Schema, depth: int = 0) -> Iterator[Any]:
    """Yield valid bodies, each with MARK as the value of one field or as a key of an object."""
    base = good(document, schema)
    allowed = types(schema)
    if not allowed or depth > 4:
        yield MARK
        return
    if "string" in allowed:
        yield MARK
    if "object" in allowed:
        properties = schema.get("properties", {})
        if not properties:
            yield from (MARK, {MARK: 1}, {"a": MARK}, {"a": {MARK: [MARK]}})
        for name, inner in properties.items():
            yield from ({**base, name: one} for one in places(document, document.whole(inner), depth + 1))
    if "array" in allowed:
        yield from ([one] for one in places(document, document.whole(schema.get("items", {})), depth + 1))


def bodies(document: Document, schema: Schema) -> Iterator[bytes]:
    """Yield valid bodies with each of TEXTS in place of MARK. The first body also gets one of NO_JSON."""
    mark, texts = orjson.dumps(MARK), (*TEXTS, NO_JSON[0])
    for body in places(document, schema):
        raw = orjson.dumps(body)
        for field, value in ACCEPTED.items():
            raw = raw.replace(b'"%s":"abc"' % field, b'"%s":"%s"' % (field, value))
        for hostile in texts:
            as_name = hostile if hostile.startswith(b'"') else b'"\\u0000"'
            yield raw.replace(mark + b":", as_name + b":").replace(mark, hostile)
        texts = TEXTS


def queries(described: Described) -> Iterator[str]:
    for name in described.parameters("query"):
        others = {key: value for key, value in good_query(described).items() if key != name}
        yield from (f"{urlencode(others)}&{name}={word}" for word in WORDS)


JSON_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def failed(response: TestResponse, what: str) -> Iterator[str]:
    if response.status_code >= 500:
        yield f"{what}: {response.status_code} {response.text[:120]}"
    response.close()


def problems_of_bodies(
    api: Any, described: Described, schema: Schema, path: str, document: Document
) -> Iterator[str]:
    for raw in dict.fromkeys(bodies(document, schema)):
        response = api.client.open(path, method=described.method, data=raw, headers=JSON_HEADERS)
        if any(text in raw for text in NO_JSON) and "JSON" not in response.text:
            yield f"{described} {raw[:120]!r}: taken for JSON: {response.text[:120]}"
        yield from failed(response, f"{described} {raw[:120]!r}")


def problems_of_queries(
    api: Any, described: Described, schema: Schema | None, path: str, document: Document
) -> Iterator[str]:
    body = None if schema is None else orjson.dumps(good(document, schema))
    for query in queries(described):
        response = api.client.open(path, method=described.method, data=body, query_string=query)
        yield from failed(response, f"{described} {query}")


def problems_of(
    api: Api | ControlPlane, described: list[Described], known: Mapping[str, str], prefix: str = ""
) -> list[str]:
    """Return the failures of these operations with hostile texts in bodies and queries."""
    document = document_of(api)
    found: list[str] = []
    for operation in described:
        schema, path = document.body(operation), prefix + operation.address(known)
        if operation.method == "DELETE":
            continue
        if schema is not None:
            found += problems_of_bodies(api, operation, schema, path, document)
        if not waits(operation):
            found += problems_of_queries(api, operation, schema, path, document)
    return found


def waits(described: Described) -> bool:
    """Return whether the operation answers only at the end of a run, or never."""
    return described.path.endswith(("/wait", "/stream", "/join", "/stream/events", "/logs/stream"))


def test_no_request_to_a_deployment_fails_by_its_texts(api: Api, unanswered: None) -> None:
    known = deployment_records(api)
    api.set(max_pending_per_thread=100_000)
    # These routes accept the same run bodies as the routes beside them.
    others = ("/runs/wait", "/runs/stream", "/runs/batch")
    described = [each for each in document_of(api).operations() if not each.path.endswith(others)]
    found = problems_of(api, described, known, f"/d/{api.deployment.name}")
    assert not found, "\n".join(found[:50])
    assert problems_of_searches(api) == []
    created: Any = api.get(f"/threads/{known['thread_id']}/runs?limit=1000").json
    assert len([run for run in created if NUL_ESCAPED in orjson.dumps(run)]) > 20, "runs hold such texts"


def test_no_request_to_the_control_plane_fails_by_its_texts(control: ControlPlane) -> None:
    found = problems_of(control, list(document_of(control).control_plane()), records(control))
    assert not found, "\n".join(found[:50])
    for path in ("/v2/deployments", "/v2/deployments?deployment_type=dev", "/v2/auth/providers"):
        assert control.client.get(path).status_code == 200, path


def test_no_command_fails_by_its_texts(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    for raw in (*TEXTS, NO_JSON[0]):
        with subtests.test(raw=raw):
            starts = (
                {"input": MARK},
                {"config": {"configurable": {"a": MARK}}},
                {"metadata": {"a": MARK}},
                {"assistant_id": MARK},
            )
            answers = (
                {"response": MARK, "interrupt_id": "i", "namespace": []},
                {"response": 1, "interrupt_id": MARK, "namespace": [MARK]},
            )
            calls = [("run.start", {"assistant_id": "agent", "input": {}, **params}) for params in starts]
            calls += [("input.respond", params) for params in answers]
            for method, params in calls:
                body = orjson.dumps({"id": 1, "method": method, "params": params}).replace(
                    orjson.dumps(MARK), raw
                )
                response = api.client.post(f"/d/chat/threads/{thread_id}/commands", data=body)
                assert response.status_code < 500, (body, response.text)
            assert problems_of_searches(api) == []


def test_no_id_in_a_path_fails_by_its_text(api: Api, unanswered: None, subtests: pytest.Subtests) -> None:
    for word in WORDS:
        with subtests.test(word=word):
            document, known = document_of(api), deployment_records(api)
            problems = []
            for described in document.operations():
                schema = document.body(described)
                body = None if schema is None else orjson.dumps(good(document, schema))
                for name in described.parameters("path"):
                    address = described.address(known, **{name: word})
                    response = api.client.open(f"/d/chat{address}", method=described.method, data=body)
                    problems += failed(response, f"{described} {name}={word!r}")
            assert not problems, "\n".join(problems[:50])


def test_no_header_fails_by_its_text(api: Api, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        "X-Api-Key",
        "Authorization",
        "Idempotency-Key",
        "Last-Event-ID",
        "X-Request-Id",
        "traceparent",
        "X-Tenant",
        "Cookie",
    ]
    for header in rows:
        with subtests.test(header=header):
            for word in ("a\x00b", "\xff\xfe"):
                for path in ("/threads", "/runs"):
                    response = api.post(path, {"assistant_id": "agent"}, headers={header: word})
                    assert response.status_code < 500, (path, word, response.text)
            assert problems_of_searches(api) == []


def problems_of_searches(api: Api) -> list[str]:
    found = ((path, body, api.post(path, body)) for path, body in SEARCHES)
    return [
        f"{path} {body}: {answer.text[:200]}" for path, body, answer in found if answer.status_code != 200
    ]


def ended(api: Api, status: RunStatus = RunStatus.SUCCESS, **kwargs: Any) -> Any:
    """End a run that leaves hostile texts wherever a graph can. Returns its record."""
    thread: Any = api.post("/threads").json
    thread_id: str = thread["thread_id"]
    body = {"assistant_id": "agent", "input": STATE, "context": {NUL: STATE}, **kwargs}
    created: Any = api.post(f"/threads/{thread_id}/runs", {**body, "webhook": "https://93.184.216.34/run"})
    assert created.status_code == 200, created.text
    actor = Actor(created.json["run_id"])
    checkpoint_id = "1ef4f797-8335-6428-8001-8a1503f9b875"
    make.stored(actor.run, checkpoint_id)
    task = {
        "id": "t",
        "name": NUL,
        "path": [],
        "error": NUL,
        "interrupts": [],
        "checkpoint": None,
        "result": STATE,
    }
    asked = [{"id": "i", "value": STATE}]
    actor.emit("values", STATE)
    actor.finish(
        STATE,
        status=status,
        thread_status=ThreadStatus.ERROR if status is RunStatus.ERROR else ThreadStatus.INTERRUPTED,
        error={"error": "ValueError", "message": NUL} if status is RunStatus.ERROR else None,
        interrupts={"t": asked},
        state=make.state(thread_id, checkpoint_id, next=["ask"], tasks=[task], interrupts=asked),
        usage={"model": {"input_tokens": 1, "output_tokens": 1}},
        output=STATE,
    )
    return created.json


@pytest.mark.parametrize("status", [RunStatus.SUCCESS, RunStatus.ERROR])
def test_what_a_graph_leaves_is_returned_as_it_is_and_fails_no_search(api: Api, status: RunStatus) -> None:
    other: Any = api.post("/threads").json
    run = ended(api, status)
    thread_id = run["thread_id"]

    thread: Any = api.get(f"/threads/{thread_id}").json
    state: Any = api.get(f"/threads/{thread_id}/state").json
    found: Any = api.post("/threads/search", {"values": {"topic": "billing"}}).json
    listed: Any = api.post("/threads/search").json

    assert thread["values"] == state["values"] == STATE
    assert thread["interrupts"] == {"t": [{"id": "i", "value": STATE}]}
    assert state["tasks"][0]["result"] == STATE
    assert [each["thread_id"] for each in found] == [thread_id], "what else it holds does not hide it"
    assert {each["thread_id"] for each in listed} == {thread_id, other["thread_id"]}
    assert problems_of_searches(api) == []


def test_every_route_answers_for_a_thread_with_such_texts(api: Api, unanswered: None) -> None:
    document, known = document_of(api), deployment_records(api)
    failed_run, run = ended(api, RunStatus.ERROR), ended(api)
    with connection() as conn:
        watching.watch(conn, {"deployment_id": api.deployment.id, "thread_id": UUID(run["thread_id"])})
    problems = []
    for described in document.operations():
        if described.method == "DELETE" or described.path.endswith("/wait"):
            continue
        schema = document.body(described)
        body = None if schema is None else orjson.dumps(good(document, schema))
        for one in (run, failed_run):
            ids = {"thread_id": one["thread_id"], "run_id": one["run_id"]}
            delivery = next(
                str(row["delivery_id"]) for row in outbox() if str(row["run_id"]) == one["run_id"]
            )
            path = f"/d/chat{described.address({**known, **ids, 'delivery_id': delivery})}"
            response = api.client.open(
                path, method=described.method, data=body, query_string=good_query(described)
            )
            problems += failed(response, str(described))
    assert not problems, "\n".join(problems)
    assert problems_of_searches(api) == []


def random_text(length: int) -> str:
    """Return a text that PostgreSQL cannot compress to the size of an index row."""
    return "".join(random.Random(length).choices(string.ascii_letters, k=length))


def test_a_run_may_name_any_text_as_its_cron(api: Api, thread_id: str) -> None:
    long, other = random_text(9_000), random_text(9_000)[:8_999]
    assert api.patch(f"/threads/{thread_id}", {"metadata": {"cron_id": {"a": long}}}).status_code == 200
    runs = [
        api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **more}).json["run_id"]  # type: ignore[index]
        for more in ({}, {"metadata": {"cron_id": long}}, {"metadata": {"cron_id": other}})
    ]
    search = {"status": ["pending"], "metadata": {"cron_id": long}}
    found: Any = api.post("/runs/search", search).json
    assert [run["run_id"] for run in found] == [runs[1]]


def test_the_longest_place_of_a_store_item_is_kept_and_a_longer_one_refused(
    api: Api, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        ([random_text(500) for _ in range(6)], "k"),
        (["".join(map(chr, range(0x4E00, 0x4E00 + 512)))] * 2, "k"),
        (["a"], "".join(map(chr, range(0x4E00, 0x4E00 + 1024)))),
    ]
    for namespace, key in rows:
        with subtests.test(namespace=namespace, key=key):
            response = api.call(
                "PUT", "/store/items", {"namespace": namespace, "key": key, "value": {"a": 1}}
            )
            assert response.status_code == 422
            assert "namespace and key: at most 2500 bytes" in response.text

    namespace, key = [random_text(500) for _ in range(4)], random_text(496)
    body = {"namespace": namespace, "key": key, "value": {"a": 1}}
    assert api.call("PUT", "/store/items", body).status_code == 204
    found: Any = api.post("/store/items/search", {"namespace_prefix": namespace[:1]}).json
    assert [item["key"] for item in found["items"]] == [key]


def test_a_time_that_is_none_in_utc_is_refused(api: Api) -> None:
    for moment in ("9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"):
        body = {"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": {}, "end_time": moment}
        response = api.post("/runs/crons", body)
        assert (moment, response.status_code) == (moment, 422)
        assert "end_time: must be a time in ISO 8601" in response.text
