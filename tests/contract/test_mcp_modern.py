"""MCP 2026-07-28: envelopes of calls, the steps that refuse them, and the form of results."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson
import pytest
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared import __version__
from tests.contract.a2a_calls import row
from tests.contract.conftest import Api, Notifications
from tests.contract.mcp_calls import ID, META, PREFIX, VERSION, Headers, body_of, headers_of
from tests.contract.rpc import BOTH, TRIP, Called
from tests.support.acting import act

pytestmark = pytest.mark.usefixtures("taking_graphs")

SUPPORTED = [VERSION, "2025-11-25", "2025-06-18", "2025-03-26"]
SERVER = {f"{PREFIX}serverInfo": {"name": "chat", "version": __version__}}


def post(api: Api, method: str, *, headers: Headers | None = None, **params: Any) -> TestResponse:
    body = body_of(method, **params)
    return api.post("/mcp", body, headers={**headers_of(body), **(headers or {})})


def called(
    api: Api, notifications: Notifications, *, headers: Headers | None = None, **params: Any
) -> Called:
    """Call a tool. The test plays the runner."""
    body = body_of("tools/call", **params)
    sent = {**headers_of(body), **(headers or {})}
    return Called(api, notifications, "/mcp", "tools/call", body["params"], headers=sent)


def result(api: Api, method: str, **params: Any) -> Any:
    response = post(api, method, **params)
    assert response.status_code == 200, response.text
    answer: Any = response.json
    assert answer["id"] == ID
    return answer["result"]


def refused(response: TestResponse) -> tuple[int, int]:
    """Return status and code of a refusal, which repeats the call's id."""
    answer: Any = response.json
    assert answer["id"] == ID, answer
    return response.status_code, answer["error"]["code"]


def test_a_call_needs_no_handshake_and_names_the_server(api: Api) -> None:
    assert result(api, "server/discover") == {
        "resultType": "complete",
        "supportedVersions": SUPPORTED,
        "capabilities": {"tools": {"listChanged": False}, "extensions": {f"{PREFIX}tasks": {}}},
        "ttlMs": 300_000,
        "cacheScope": "private",
        "_meta": SERVER,
    }
    listed = result(api, "tools/list")
    assert {tool["name"] for tool in listed.pop("tools")} == {"agent", "other"}
    assert listed == {"resultType": "complete", "ttlMs": 30_000, "cacheScope": "private", "_meta": SERVER}
    api.set(dev_deployment="chat")
    assert result(api, "tools/list")["ttlMs"] == 0


def test_a_tool_call_is_a_run_in_the_modern_form(api: Api, notifications: Notifications) -> None:
    calling = called(api, notifications, name="agent", arguments={"messages": "hi"})
    act(calling.run_id, {"a": 1})
    answer = calling.result()
    assert orjson.loads(answer.pop("content")[0]["text"]) == {"a": 1}
    assert answer == {"resultType": "complete", "isError": False, "_meta": SERVER}


def test_either_header_or_body_makes_a_call_modern(api: Api, subtests: pytest.Subtests) -> None:
    """A call with a modern header and no `_meta`, or the other way round, is refused like a modern one."""
    legacy = [{}, *({"MCP-Protocol-Version": version} for version in (*SUPPORTED[1:], "2024-11-05"))]
    for headers in legacy:
        with subtests.test(headers=headers):
            plain = {"jsonrpc": "2.0", "id": ID, "method": "tools/list", "params": {"_meta": {"x": 1}}}
            answer: Any = api.post("/mcp", plain, headers={**BOTH, **headers}).json
            assert set(answer["result"]) == {"tools"}
            by_body = api.post("/mcp", body_of("tools/list"), headers={**BOTH, **headers})
            assert refused(by_body) == (400, -32020)
    for version in (VERSION, "2027-01-01", "x", ""):
        with subtests.test(version=version):
            plain = {"jsonrpc": "2.0", "id": ID, "method": "tools/list"}
            response = api.post("/mcp", plain, headers={**BOTH, "MCP-Protocol-Version": version})
            assert refused(response) == (400, -32602)


def test_the_first_step_that_fails_answers(api: Api, subtests: pytest.Subtests) -> None:
    """Each call fails in one step only, and in those after it."""
    good = body_of("tools/call", name="agent", arguments={"messages": "hi"})
    headers = headers_of(good)
    other = {**META, f"{PREFIX}protocolVersion": "2027-01-01"}
    no_capabilities = {f"{PREFIX}protocolVersion": VERSION}
    no_version = {f"{PREFIX}clientCapabilities": {}}
    rows: list[tuple[str, Any, Headers, tuple[int, int]]] = [
        ("version of JSON-RPC", {**good, "jsonrpc": "1.0"}, {}, (400, -32600)),
        ("method is no text", {**good, "method": 7}, {}, (400, -32600)),
        ("parameters are a list", {**good, "params": []}, headers, (400, -32602)),
        ("no capabilities", body_of("x", meta=no_capabilities), {}, (400, -32602)),
        ("capabilities are a list", body_of("x", meta={**META, f"{PREFIX}clientCapabilities": []}), {}, (400, -32602)),
        ("no version", body_of("x", meta=no_version), {"MCP-Protocol-Version": VERSION}, (400, -32602)),
        ("version is a number", body_of("x", meta={**META, f"{PREFIX}protocolVersion": 7}), {}, (400, -32602)),
        ("no headers", body_of("x", meta=other), {}, (400, -32020)),
        ("other version", body_of("x", meta=other), {**headers, "Mcp-Method": "x"}, (400, -32020)),
        ("other method", body_of("x", meta=other), {**headers, "MCP-Protocol-Version": "2027-01-01"}, (400, -32020)),
        ("other case", good, {**headers, "Mcp-Method": "Tools/call"}, (400, -32020)),
        ("other name", good, {**headers, "Mcp-Name": "other"}, (400, -32020)),
        ("no base64", good, {**headers, "Mcp-Name": "=?base64?YWdlbnQ?="}, (400, -32020)),
        ("no name", good, {name: value for name, value in headers.items() if name != "Mcp-Name"}, (400, -32020)),
        ("no task's name", body_of("tasks/get", taskId="t"), {**headers, "Mcp-Method": "tasks/get"}, (400, -32020)),
        ("unknown version", body_of("x", meta=other),
         {**headers, "Mcp-Method": "x", "MCP-Protocol-Version": "2027-01-01"}, (400, -32022)),
        ("unknown method", body_of("x"), {**headers, "Mcp-Method": "x"}, (404, -32601)),
        ("unknown tool", body_of("tools/call", name="x"), {**headers, "Mcp-Name": "x"}, (400, -32602)),
        ("no tool", body_of("tools/call"), headers, (400, -32602)),
    ]  # fmt: skip
    for reason, body, sent, answer in rows:
        with subtests.test(reason=reason):
            assert refused(api.post("/mcp", body, headers={**BOTH, **sent})) == answer
    gone = ("initialize", "ping", "logging/setLevel", "resources/subscribe", "prompts/list", "tasks/list")
    for method in gone:
        assert (method, refused(post(api, method))) == (method, (404, -32601))


def test_what_is_no_request_gets_no_answer(api: Api) -> None:
    headers = {**BOTH, "MCP-Protocol-Version": VERSION}
    for body in (
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ):
        response = api.post("/mcp", body, headers=headers)
        assert (response.status_code, response.data) == (202, b"")
    for id in (1.5, None, True, [], {}):
        response = api.post(
            "/mcp", {**body_of("tools/list"), "id": id}, headers=headers_of(body_of("tools/list"))
        )
        answer: Any = response.json
        assert (id, response.status_code, answer["error"]["code"]) == (id, 400, -32600)


def test_an_unknown_version_is_answered_with_those_that_are_served(api: Api) -> None:
    for version in ("v999.0.0", "2025-11-25"):
        meta = {**META, f"{PREFIX}protocolVersion": version}
        response = post(api, "server/discover", headers={"MCP-Protocol-Version": version}, meta=meta)
        assert refused(response) == (400, -32022)
        assert response.json["error"]["data"] == {"supported": SUPPORTED, "requested": version}  # type: ignore[index]


def test_a_name_may_be_encoded_and_surrounded_by_spaces(api: Api) -> None:
    call = {"name": "agent", "arguments": {}}
    for name in ("=?base64?" + b64encode(b"agent").decode() + "?=", "  agent "):
        assert result(api, "tools/call", headers={"Mcp-Name": name}, **call)["isError"] is True
    for text in ("é", "=?base64?YQ==?=", "", "日本語"):
        name = "=?base64?" + b64encode(text.encode()).decode() + "?="
        assert refused(post(api, "tools/call", headers={"Mcp-Name": name}, name=text)) == (400, -32602)


def test_the_client_must_take_json_or_a_stream_and_send_json(api: Api) -> None:
    for accept in ("", "*/*", "text/html"):
        assert refused(post(api, "tools/list", headers={"Accept": accept})) == (406, -32600)
    for accept in ("application/json", "text/event-stream", "Application/JSON;q=0.9, x/y"):
        assert post(api, "tools/list", headers={"Accept": accept}).status_code == 200
    body = orjson.dumps(body_of("tools/list"))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"):
        headers = headers_of(body_of("tools/list"))
        response = api.client.post("/d/chat/mcp", data=body, headers=headers, content_type=kind)
        assert (kind, response.status_code) == (kind, 415)
        assert response.json["error"]["code"] == -32600  # type: ignore[index]


def test_only_post_is_served(api: Api) -> None:
    for path in ("/mcp", "/mcp/"):
        for method in ("GET", "DELETE", "PUT"):
            response = api.call(method, path, headers={"MCP-Protocol-Version": VERSION, **BOTH})
            assert (response.status_code, response.headers["Allow"]) == (405, "OPTIONS, POST")


def test_metadata_of_an_assistant_says_how_it_is_shown(api: Api, notifications: Notifications) -> None:
    place = {
        "type": "object",
        "required": ["x"],
        "x-mcp-header": "X",
        "properties": {"y": {"$ref": "https://x.example/y"}},
    }
    output = {"properties": {"place": {"$ref": "#/$defs/P"}}, "required": ["place"], "$defs": {"P": place}}
    make.takes(api.deployment, "other", {**TRIP, "x-mcp-header": "X"}, output_schema=output)
    hints = {"readOnlyHint": True, "openWorldHint": False}
    shown = {"annotations": hints, "structured": True}
    created = api.post("/assistants", {"graph_id": "other", "name": "trip", "metadata": {"mcp": shown}})
    hidden = {"graph_id": "agent", "name": "hidden", "metadata": {"mcp": {"listed": False}}}
    assert (created.status_code, api.post("/assistants", hidden).status_code) == (200, 200)

    tools = {tool["name"]: tool for tool in result(api, "tools/list")["tools"]}
    assert set(tools) == {"agent", "other", "trip"}
    assert tools["trip"]["annotations"] == {**tools["other"]["annotations"], **hints}
    assert tools["trip"]["inputSchema"] == TRIP
    assert tools["trip"]["outputSchema"] == {
        "type": "object",
        "properties": output["properties"],
        "$defs": {"P": {"type": "object", "required": ["x"], "properties": {"y": {}}}},
    }
    assert "outputSchema" not in tools["other"]
    calling = called(api, notifications, name="trip", arguments={"city": "Rome"})
    act(calling.run_id, {"place": {}})
    assert calling.result()["structuredContent"] == {"place": {}}
    assert (
        result(api, "tools/call", name="hidden", arguments={})["isError"] is True
    )  # found, without its argument


def test_invalid_options_in_the_metadata_are_named(api: Api, subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, str]] = [
        (True, "metadata.mcp: must be an object"),
        ({"structure": True}, "metadata.mcp.structure: not known. Did you mean structured?"),
        ({"structured": 1}, "metadata.mcp.structured: must be true or false"),
        ({"listed": None}, "metadata.mcp.listed: must be true or false"),
        ({"annotations": []}, "metadata.mcp.annotations: must be an object"),
        (
            {"annotations": {"readOnlyHint": "yes"}},
            "metadata.mcp.annotations.readOnlyHint: must be true or false",
        ),
        ({"annotations": {"title": "x"}}, "metadata.mcp.annotations.title: not known."),
        ({"task_after": -1}, "metadata.mcp.task_after: must be greater than or equal to 0"),
        ({"task_required": "no"}, "metadata.mcp.task_required: must be true or false"),
    ]
    for options, said in rows:
        with subtests.test(options=options):
            for response in (
                api.post("/assistants", {"graph_id": "agent", "metadata": {"mcp": options}}),
                api.patch("/assistants/agent", {"metadata": {"mcp": options}}),
            ):
                assert (response.status_code, response.json["detail"]) == (422, said)  # type: ignore[index]


def test_the_trace_of_a_caller_goes_with_the_run(api: Api, notifications: Notifications) -> None:
    parent = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    meta = {"traceparent": parent, "tracestate": "a=b", "baggage": "user=ann", **META}
    params = {"name": "agent", "arguments": {"messages": "hi"}}
    calling = called(
        api, notifications, **params, meta=meta, headers={"traceparent": parent.replace("1", "3")}
    )
    entries = row(calling.run_id)["kwargs"]["config"]["configurable"]
    assert entries["__otel_traceparent__"] == parent
    assert (entries["__otel_tracestate__"], entries["__otel_baggage__"]) == ("a=b", "user=ann")
    act(calling.run_id, {})
    calling.result()
    for bad in ("x", 7, {"a": 1}, "é", "a" * 9000):
        meta = {**META, "traceparent": bad, "baggage": bad if bad != "x" else "\n"}
        calling = called(api, notifications, **params, meta=meta)
        entries = row(calling.run_id)["kwargs"]["config"]["configurable"]
        assert entries.keys().isdisjoint(("__otel_baggage__", "__otel_traceparent__"))
        act(calling.run_id, {})
        calling.result()
