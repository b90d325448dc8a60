"""Every operation of a deployment's interface × every kind of bad input: refused, in one string, never a list.

Most cases are made from the API document; the table has what no schema says, with the words that clients read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.contract.bad_input import BODIES, MAX_BYTES, Loc, bad_objects, bad_words, good, good_query
from tests.contract.conftest import Api
from tests.contract.documented import Described, Document, Schema, deployment_records, document_of

MISSING = "00000000-0000-0000-0000-00000000dead"
BAD_JSON = "Invalid JSON in request body"
CREATES_A_RUN = (
    "/threads/{thread_id}/runs",
    "/threads/{thread_id}/runs/stream",
    "/threads/{thread_id}/runs/wait",
)
SAID = {
    "json_invalid": BAD_JSON,
    "dict_type": "must be an",
    "recursion_loop": "the body is nested deeper than 128 levels",
    "too_long": "the body has more than 100000 values",
}
# What refuses in a form of its own: tests/contract/test_mcp.py, test_a2a.py, test_protocol_commands.py.
OWN_WORDS = ("/mcp", "/a2a/{assistant_id}", "/threads/{thread_id}/commands")
TAKEN_AS_FALSE = ("DELETE /assistants/{assistant_id}", "delete_threads")  # whatever it says
NO_CHANNELS = ("POST /threads/{thread_id}/stream/events", "channels")  # a 400 there
NO_NUMBER = "GET /threads/{thread_id}/runs"  # a limit or offset that is no number is a 400 there


@pytest.fixture
def document(api: Api) -> Document:
    return document_of(api)


@pytest.fixture
def known(api: Api) -> dict[str, str]:
    return deployment_records(api)


def with_body(document: Document) -> Iterator[tuple[Described, Schema]]:
    for described in document.operations():
        schema = document.body(described)
        if schema is not None and described.path not in OWN_WORDS:
            yield described, schema


def send(api: Api, described: Described, known: dict[str, str], raw: bytes) -> TestResponse:
    path = f"/d/{api.deployment.name}{described.address(known)}"
    return api.client.open(path, method=described.method, data=raw)


def wrong(response: TestResponse, *said: str, status: int = 422) -> str | None:
    """What is wrong with a refusal that should say this; None when all is well."""
    answer: Any = response.json
    if response.status_code != status:
        return f"{response.status_code} {response.text[:200]}"
    if set(answer) != {"detail"} or not isinstance(answer["detail"], str):
        return f"not the form of a refusal: {answer}"
    missing = [text for text in said if text not in answer["detail"]]
    return f"{answer['detail']!r} does not say {missing}" if missing else None


def test_a_body_of_another_kind_is_refused(api: Api, document: Document, known: dict[str, str]) -> None:
    problems = []
    for described, schema in with_body(document):
        for raw, _, kind in BODIES:
            if kind == "dict_type" and raw == b"[]" and schema["type"] == "array":
                continue
            response = send(api, described, known, raw)
            if problem := wrong(response, SAID[kind]):
                problems.append(f"{described} {raw[:20]!r}: {problem}")
    assert not problems, "\n".join(problems)


def test_no_body_is_no_json(api: Api, document: Document, known: dict[str, str]) -> None:
    for described, _ in with_body(document):
        for raw in (b"", b"  \n") if described.said["requestBody"]["required"] else ():
            response = send(api, described, known, raw)
            assert wrong(response, BAD_JSON) is None, described


def test_no_body_is_an_empty_object(api: Api, document: Document, known: dict[str, str]) -> None:
    known |= {"thread_id": api.post("/threads").json["thread_id"], "run_id": MISSING}
    optional = [
        described for described, _ in with_body(document) if not described.said["requestBody"]["required"]
    ]
    assert {"POST /threads", "POST /threads/search", "POST /assistants/search"} <= set(map(str, optional))
    for described in optional:
        absent, empty = (send(api, described, known, raw) for raw in (b"", b"{}"))
        assert absent.status_code == empty.status_code, (described, absent.text)


def test_a_body_that_is_too_large_is_refused(api: Api, document: Document, known: dict[str, str]) -> None:
    api.client.application.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    raw = b'{"a": "' + b"x" * MAX_BYTES + b'"}'
    for described, _ in with_body(document):
        response = send(api, described, known, raw)
        said = f"The request body is larger than {MAX_BYTES} bytes"
        assert wrong(response, said, status=413) is None, described


def test_every_field_is_checked_and_named(api: Api, document: Document, known: dict[str, str]) -> None:
    problems = []
    count = 0
    for described, schema in with_body(document):
        for loc, body, what in bad_bodies(document, schema):
            response = api.call(described.method, described.address(known), body)
            count += 1
            status = 400 if (str(described), loc[0]) == NO_CHANNELS else 422
            if problem := wrong(response, place(loc), status=status):
                problems.append(f"{described} {what} at {loc}: {problem}")
    assert not problems, "\n".join(problems)
    assert count > 500


def bad_bodies(document: Document, schema: Schema) -> Iterator[tuple[Loc, Any, str]]:
    if schema["type"] != "array":
        yield from bad_objects(document, schema)
        return
    for loc, body, what in bad_objects(document, document.whole(schema["items"])):
        yield [0, *loc], [body], what


def place(loc: Loc) -> str:
    """How a refusal names it; the id of a checkpoint has words of its own."""
    return "checkpoint" if loc[-1] == "checkpoint_id" else ".".join(map(str, loc))


def test_every_id_in_a_path_is_checked(api: Api, document: Document, known: dict[str, str]) -> None:
    problems = []
    for described in document.operations():
        schema = document.body(described)
        body = None if schema is None else good(document, schema)
        for name, expected in described.parameters("path").items():
            if expected.get("format") != "uuid" or described.path in OWN_WORDS:
                continue
            said = f"Invalid {name.removesuffix('_id')} ID: must be a UUID"
            if described.method == "POST" and described.path in CREATES_A_RUN:
                said = "Invalid thread ID"
            for text in ("nonsense", "7", "0" * 36, "01890a5dac96774bbcceb302099a8057"):
                path = described.address(known, **{name: text})
                response = api.call(described.method, path, body, query_string=good_query(described))
                if problem := wrong(response, said):
                    problems.append(f"{described} {name}={text}: {problem}")
    assert not problems, "\n".join(problems)


def test_every_word_of_a_query_is_checked(api: Api, document: Document, known: dict[str, str]) -> None:
    problems = []
    for described in document.operations():
        schema = document.body(described)
        body = None if schema is None else good(document, schema)
        for name, expected in described.parameters("query").items():
            for text in bad_words(expected) if (str(described), name) != TAKEN_AS_FALSE else ():
                query = {**good_query(described), name: text}
                response = api.call(described.method, described.address(known), body, query_string=query)
                is_number = expected.get("type") != "integer" or re.fullmatch(r"-?\d{1,18}", text)
                status = 400 if str(described) == NO_NUMBER and not is_number else 422
                if problem := wrong(response, name, status=status):
                    problems.append(f"{described} {name}={text!r}: {problem}")
    assert not problems, "\n".join(problems)


BOTH = {"config": {"configurable": {"a": 1}}, "context": {"a": 1}}
RUN = {"assistant_id": "agent"}
CRON = {"assistant_id": "agent", "schedule": "0 0 1 1 *"}
NO_ASSISTANT = "Assistant {missing} not found"
NO_THREAD = "Thread with ID {missing} not found"
NO_GRAPH = "Graph 'nope' not found. Expected one of: ['agent', 'other']"
NOTHING_FOUND = "Thread or assistant not found."
TWO_CONFIGURATIONS = "Cannot specify both configurable and context. Prefer setting context alone."
UNKNOWN_ASSISTANT = (
    "Invalid assistant: 'nope'. Must be either:\n- A valid assistant UUID, or\n"
    "- One of the registered graphs: agent, other"
)
REJECTED = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."

# What is asked, and what is answered; of a detail that ends in an ellipsis, its beginning.
REFUSALS: list[tuple[str, Any, int, str]] = [
    ("POST /assistants", {"graph_id": "agent", **BOTH}, 400, TWO_CONFIGURATIONS),
    ("PATCH /assistants/{assistant_id}", BOTH, 400, TWO_CONFIGURATIONS),
    ("POST /runs", {**RUN, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /runs/batch", [RUN, {**RUN, **BOTH}], 400, TWO_CONFIGURATIONS),
    ("POST /runs/wait", {**RUN, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /runs/stream", {**RUN, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /runs/crons", {**CRON, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /threads/{blank}/state", {"values": {}}, 400, "Thread '{blank}' has no assigned graph ID…"),
    ("PATCH /runs/crons/{cron_id}", {}, 400, "Request body cannot be empty"),
    ("POST /threads/search", {"ids": ["bad"]}, 400, "Invalid thread ID bad"),
    ("POST /threads/search", {"ids": ["{thread_id}", "7"]}, 400, "Invalid thread ID 7"),
    ("PUT /store/items", {"namespace": [], "key": "k", "value": {}}, 400, "Namespace cannot be empty."),
    (
        "PUT /store/items", {"namespace": ["langgraph"], "key": "k", "value": {}}, 400,
        'Root label for namespace cannot be "langgraph"…',
    ),
    ("GET /store/items?namespace=a", None, 400, "Key is required"),
    ("GET /assistants/{missing}", None, 404, "Not Found"),
    ("GET /assistants/{missing}/graph", None, 404, "Not Found"),
    ("GET /assistants/{missing}/schemas", None, 404, "Not Found"),
    ("GET /assistants/{missing}/subgraphs", None, 404, "Not Found"),
    ("GET /assistants/nope/graph", None, 404, "Not Found"),
    ("PATCH /assistants/{missing}", {}, 404, NO_ASSISTANT),
    ("POST /assistants/{missing}/latest", {"version": 1}, 404, NO_ASSISTANT),
    ("POST /assistants/{missing}/versions", {}, 404, NO_ASSISTANT),
    ("DELETE /assistants/{missing}", None, 404, "Assistant with ID {missing} not found"),
    ("POST /assistants", {"graph_id": "nope"}, 404, NO_GRAPH),
    ("PATCH /assistants/{assistant_id}", {"graph_id": "nope"}, 404, NO_GRAPH),
    ("POST /assistants/search", {"graph_id": "nope"}, 404, NO_GRAPH),
    ("POST /assistants/count", {"graph_id": "nope"}, 404, NO_GRAPH),
    (
        "POST /assistants/{assistant_id}/latest", {"version": 99}, 404,
        "Version 99 not found for assistant {assistant_id}",
    ),
    ("GET /threads/{missing}", None, 404, NO_THREAD),
    ("PATCH /threads/{missing}", {}, 404, "Not Found"),
    ("DELETE /threads/{missing}", None, 404, NO_THREAD),
    ("POST /threads/{missing}/copy", None, 409, NO_THREAD),
    ("GET /threads/{missing}/storage", None, 404, NO_THREAD),
    ("GET /threads/{missing}/state", None, 404, NO_THREAD),
    ("GET /threads/{missing}/state/{checkpoint_id}", None, 404, NO_THREAD),
    ("POST /threads/{missing}/state/checkpoint", {"checkpoint": {}}, 404, NO_THREAD),
    ("GET /threads/{missing}/history", None, 404, NO_THREAD),
    ("POST /threads/{missing}/history", {}, 404, NO_THREAD),
    ("POST /threads/{missing}/state", {"values": {}}, 404, NO_THREAD),
    ("GET /threads/{missing}/stream", None, 404, NO_THREAD),
    ("GET /threads/{missing}/runs", None, 404, NO_THREAD),
    ("GET /threads/{thread_id}/runs/{missing}", None, 404, "Not Found"),
    ("GET /threads/{idle_thread_id}/runs/{run_id}", None, 404, "Not Found"),
    ("GET /threads/{thread_id}/runs/{missing}/join", None, 404, "Not Found"),
    ("GET /threads/{thread_id}/runs/{missing}/stream", None, 404, "Not Found"),
    ("GET /runs/{missing}/join", None, 404, "Not Found"),
    ("GET /runs/{missing}/stream", None, 404, "Not Found"),
    ("DELETE /threads/{thread_id}/runs/{missing}", None, 404, "Run not found"),
    ("DELETE /threads/{idle_thread_id}/runs/{run_id}", None, 404, "Run not found"),
    ("POST /threads/{missing}/runs", RUN, 404, NOTHING_FOUND),
    ("POST /threads/{missing}/runs/wait", RUN, 404, NOTHING_FOUND),
    ("POST /threads/{missing}/runs/stream", RUN, 404, NOTHING_FOUND),
    ("POST /threads/{idle_thread_id}/runs", {"assistant_id": MISSING}, 404, NOTHING_FOUND),
    ("POST /runs", {"assistant_id": MISSING}, 404, NOTHING_FOUND),
    ("POST /runs/wait", {"assistant_id": MISSING}, 404, NOTHING_FOUND),
    ("POST /runs/stream", {"assistant_id": MISSING}, 404, NOTHING_FOUND),
    ("POST /runs/batch", [{"assistant_id": MISSING}], 404, NOTHING_FOUND),
    ("POST /threads/{thread_id}/runs/{missing}/cancel", None, 404, "No runs found to cancel."),
    ("POST /threads/{idle_thread_id}/runs/{run_id}/cancel", None, 404, "No runs found to cancel."),
    ("POST /threads/{idle_thread_id}/runs/{ended_run_id}/cancel", None, 404, "No matching runs to cancel…"),
    ("POST /runs/cancel", {"thread_id": MISSING, "run_ids": [MISSING]}, 404, "No runs found to cancel."),
    ("POST /runs/cancel", {"status": "running"}, 404, "No runs found to cancel."),
    ("POST /threads/{thread_id}/runs/{missing}/retry", None, 404, "Not Found"),
    ("POST /threads/{idle_thread_id}/runs/{run_id}/retry", None, 404, "Not Found"),
    ("POST /threads/{thread_id}/runs/{run_id}/retry", None, 409, REJECTED),
    (
        "POST /threads/{idle_thread_id}/runs/{ended_run_id}/retry", None, 409,
        "Run {ended_run_id} has not failed: its status is success.",
    ),
    ("GET /runs/crons/{missing}", None, 404, "Not Found"),
    ("DELETE /runs/crons/{missing}", None, 404, "Not Found"),
    ("PATCH /runs/crons/{missing}", {"enabled": False}, 404, "Cron '{missing}' not found"),
    ("POST /runs/crons", {**CRON, "assistant_id": "x"}, 404, "Assistant 'x' not found"),
    ("POST /runs/crons", {**CRON, "assistant_id": MISSING}, 404, "Assistant '{missing}' not found"),
    ("POST /threads/{missing}/runs/crons", CRON, 404, "Thread with ID '{missing}' not found…"),
    ("GET /nowhere", None, 404, "Not Found"),
    ("GET /threads", None, 405, "Method Not Allowed"),
    ("GET /assistants", None, 405, "Method Not Allowed"),
    ("GET /runs", None, 405, "Method Not Allowed"),
    ("POST /assistants", {"graph_id": "agent", "assistant_id": "{assistant_id}"}, 409, "Assistant {assistant_id} already exists"),
    ("POST /threads", {"thread_id": "{thread_id}"}, 409, "Thread with ID {thread_id} already exists"),
    ("POST /threads/{thread_id}/runs", {**RUN, "multitask_strategy": "reject"}, 409, REJECTED),
    ("POST /threads/{thread_id}/runs/wait", {**RUN, "multitask_strategy": "reject"}, 409, REJECTED),
    ("POST /threads/{thread_id}/runs/stream", {**RUN, "multitask_strategy": "reject"}, 409, REJECTED),
    ("POST /threads/{thread_id}/state", {"values": {}}, 409, "Thread {thread_id} has in-flight runs: {run_id}"),
    ("POST /runs", {"assistant_id": "nope"}, 422, UNKNOWN_ASSISTANT),
    ("POST /runs/wait", {"assistant_id": "nope"}, 422, UNKNOWN_ASSISTANT),
    ("POST /runs/stream", {"assistant_id": "nope"}, 422, UNKNOWN_ASSISTANT),
    ("POST /runs/batch", [RUN, {"assistant_id": "nope"}], 422, UNKNOWN_ASSISTANT),
    ("POST /threads/{idle_thread_id}/runs", {"assistant_id": "nope"}, 422, UNKNOWN_ASSISTANT),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, "checkpoint_id": "x"}, 422, "Invalid checkpoint ID"),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, "checkpoint": {"checkpoint_id": "x"}}, 422, "Invalid checkpoint ID"),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, "config": {"configurable": {"checkpoint_id": "x"}}}, 422, "Invalid checkpoint ID"),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, "checkpoint": {"thread_id": MISSING, "checkpoint_id": MISSING}}, 422, "checkpoint.thread_id: must be this thread"),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, "interrupt_before": "ask"}, 422, 'interrupt_before: must be "*" or an array of node names'),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, "command": {"update": [["a"]]}}, 422, "command.update: must be…"),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, "command": {"goto": [{"input": 1}]}}, 422, "command.goto: must be…"),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, "stream_mode": ["values", "nope"]}, 422, "stream_mode.1: must be one of…"),
    ("POST /threads/{idle_thread_id}/runs", {**RUN, "if_thread_status": "x"}, 422, "if_thread_status: must be one of 'idle', 'busy', 'interrupted', 'error'"),
    ("POST /threads/{idle_thread_id}/state", {"checkpoint_id": "x"}, 422, "Invalid checkpoint ID"),
    ("POST /threads/{idle_thread_id}/state", {"checkpoint": {"thread_id": MISSING, "checkpoint_id": MISSING}}, 422, "checkpoint.thread_id: must be this thread"),
    ("POST /runs/batch", [], 422, "must have at least 1 item"),
    ("POST /runs/batch", [RUN, {}], 422, "1.assistant_id: this field is required"),
    ("POST /runs/cancel", {}, 422, "exactly one of status…"),
    ("POST /runs/cancel", {"status": "all", "thread_id": MISSING, "run_ids": [MISSING]}, 422, "exactly one of status…"),
    ("POST /runs/cancel", {"thread_id": MISSING}, 422, "exactly one of status…"),
    ("POST /runs/crons", {**CRON, "schedule": "x"}, 422, "Invalid cron schedule: 'x'…"),
    ("POST /runs/crons", {**CRON, "timezone": "Mars/One"}, 422, "Invalid timezone: 'Mars/One'"),
    ("PATCH /runs/crons/{cron_id}", {"schedule": "x"}, 422, "Invalid cron schedule: 'x'…"),
    ("POST /runs/crons/search", {"assistant_id": "agent"}, 422, "assistant_id: must be a UUID"),
    ("GET /assistants/{assistant_id}/graph?xray=maybe", None, 422, "Invalid xray value"),
    ("GET /threads/{thread_id}/runs?limit=x", None, 400, "limit: must be an integer"),
    ("GET /threads/{thread_id}/runs?select=x", None, 422, "Invalid select columns: ['x']. Expected: {'run_id', …"),
    ("GET /threads/{thread_id}/history?limit=abc", None, 422, "limit: must be an integer"),
    ("GET /threads/{thread_id}/state?select=x", None, 422, "Invalid select field 'x'"),
    ("POST /threads", {"supersteps": [{"updates": []}]}, 422, "supersteps.0.updates: must have at least 1 item"),
    ("POST /threads", {"ttl": 5}, 422, "ttl: must be an object"),
    ("POST /threads", {"ttl": {"ttl": -1}}, 422, "ttl.ttl: must be greater than or equal to 0"),
    ("POST /threads/search", {"limit": 0}, 422, "limit: must be greater than or equal to 1"),
    ("POST /threads/search", {"extract": {"1a": "values"}}, 422, "extract: the alias '1a' is not an identifier"),
    ("POST /threads/search", {"extract": {"a": "other.b"}}, 422, "extract: the path 'other.b' must begin with…"),
    ("POST /threads/search", {"extract": {f"a{n}": "values" for n in range(11)}}, 422, "extract: at most 10 paths"),
    ("POST /threads/search", {"metadata": {"a": "\x00"}}, 422, "metadata: must not contain the character U+0000"),
    ("PUT /store/items", {"namespace": ["a.b"], "key": "k", "value": {}}, 422, "namespace.0: must not contain dots"),
    ("PUT /store/items", {"namespace": ["a"], "key": "k", "value": {}, "ttl": -1}, 422, "ttl: must be greater…"),
    ("PUT /store/items", {"namespace": ["a", ""], "key": "k", "value": {}}, 422, "namespace.1: must have at least 1 character"),
]  # fmt: skip


def test_each_refusal_has_its_words(api: Api, known: dict[str, str]) -> None:
    blank: Any = api.post("/threads").json
    known |= {"missing": MISSING, "blank": blank["thread_id"]}
    problems = []
    for asked, body, status, detail in REFUSALS:
        method, _, path = asked.partition(" ")
        response = api.call(method, filled(path, known), filled(body, known))
        said = filled(detail, known)
        answer: Any = response.json
        found = answer.get("detail") if isinstance(answer, dict) else None
        is_so = found == said or (said.endswith("…") and str(found).startswith(said[:-1]))
        if (response.status_code, is_so, set(answer or ())) != (status, True, {"detail"}):
            problems.append(f"{asked} {body}: {response.status_code} {response.text[:200]}")
    assert not problems, "\n".join(problems)


def filled(value: Any, known: dict[str, str]) -> Any:
    """A path, text or body with the ids of records for their names."""
    if isinstance(value, str):
        for name, id in known.items():
            value = value.replace(f"{{{name}}}", id)
        return value
    if isinstance(value, dict):
        return {key: filled(inner, known) for key, inner in value.items()}
    return [filled(inner, known) for inner in value] if isinstance(value, list) else value
