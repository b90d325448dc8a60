"""MCP at a deployment's address: the transport, the tools, and the results of calls."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared import __version__
from shared.models import RunStatus, ThreadStatus
from tests.contract import rpc
from tests.contract.a2a_calls import row
from tests.contract.bad_input import BODIES, MAX_BYTES, bad_objects
from tests.contract.conftest import Api, Notifications
from tests.contract.documented import document_of
from tests.contract.rpc import BOTH, CHAT, TRIP, Called
from tests.support.acting import Actor, act
from web.gate import limits

pytestmark = pytest.mark.usefixtures("taking_graphs")

TEXT = {"type": "string"}
ASKED = [{"id": "i1", "value": "which?", "response_schema": None}]


def post(api: Api, method: str, params: Any = None, *, path: str = "/mcp", **more: Any) -> TestResponse:
    return rpc.post(api, path, method, params, **more)


def result(api: Api, method: str, params: Any = None, *, path: str = "/mcp", **more: Any) -> Any:
    return rpc.result(api, path, method, params, **more)


def error(api: Api, method: str, params: Any = None) -> tuple[int, str]:
    return rpc.error(api, "/mcp", method, params)


def called(api: Api, notifications: Notifications, tool: str, arguments: Any, **params: Any) -> Called:
    """Call a tool without waiting for the end of its run."""
    asked = {"name": tool, "arguments": arguments, **params}
    return Called(api, notifications, "/mcp", "tools/call", asked)


def test_it_introduces_itself_at_either_address_and_keeps_no_session(api: Api) -> None:
    asked = {"protocolVersion": "2025-06-18", "capabilities": {}}
    for path in ("/mcp", "/mcp/"):
        assert result(api, "initialize", asked, path=path) == {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "chat", "version": __version__},
        }
        assert result(api, "initialize", path=path)["protocolVersion"] == "2025-11-25"
        assert result(api, "ping", path=path) == {}
    response = post(api, "initialize", headers={**BOTH, "Mcp-Session-Id": "anything"})
    assert response.status_code == 200
    assert "Mcp-Session-Id" not in response.headers
    assert api.get("/mcp", headers=BOTH).status_code == 405
    assert api.delete("/mcp", headers=BOTH).status_code == 405


def test_what_wants_no_answer_gets_none(api: Api, notifications: Notifications) -> None:
    bodies: list[Any] = [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "agent"}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}},
    ]
    for body in bodies:
        response = api.post("/mcp", body, headers=BOTH)
        assert (body, response.status_code, response.data) == (body, 202, b"")
    assert not notifications.heard


def test_the_client_must_take_json_or_a_stream(api: Api) -> None:
    for accept in ("", "*/*", "text/html"):
        response = post(api, "ping", headers={"Accept": accept})
        assert (accept, response.status_code) == (accept, 400)
        assert "Accept" in response.json["error"]["message"]  # type: ignore[index]
    for accept in ("application/json", "text/event-stream"):
        assert (accept, post(api, "ping", headers={"Accept": accept}).status_code) == (accept, 200)


def test_what_is_no_call_is_refused_in_its_own_form(api: Api) -> None:
    document = document_of(api)
    (described,) = (one for one in document.operations() if str(one) == "POST /mcp")
    schema = document.body(described)
    assert schema is not None
    bodies = [raw for raw, _ in BODIES] + [b"", b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]']
    bodies += [orjson.dumps(body) for loc, body, _ in bad_objects(document, schema) if loc != ["params"]]
    for raw in bodies:
        response = api.client.post("/d/chat/mcp", data=raw, headers=BOTH, content_type="application/json")
        answer: Any = response.json
        assert response.status_code == 400, (raw[:80], response.text)
        assert answer["error"]["code"] in (-32700, -32600), raw[:80]
    assert error(api, "ping", [1])[0] == -32602
    api.client.application.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    assert post(api, "ping", {"a": "x" * MAX_BYTES}).status_code == 413


def test_assistants_are_tools(api: Api) -> None:
    tools = {tool["name"]: tool for tool in result(api, "tools/list")["tools"]}
    assert tools["agent"] == {
        "name": "agent",
        "title": "agent",
        "description": "Runs the assistant 'agent'.",
        "inputSchema": {"type": "object", "properties": {"messages": TEXT}, "required": ["messages"]},
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": False,
            "idempotentHint": False,
            "openWorldHint": True,
        },
    }
    assert tools["other"]["inputSchema"] == TRIP


def test_a_conversation_keeps_its_other_fields(api: Api) -> None:
    place = {"$ref": "#/$defs/Place"}
    definitions = {"Place": {"type": "object"}}
    properties = {**CHAT["properties"], "place": place}
    make.takes(
        api.deployment, "agent", {"properties": properties, "required": ["place"], "$defs": definitions}
    )
    (tool, _) = result(api, "tools/list")["tools"]
    assert tool["inputSchema"] == {
        "type": "object",
        "properties": {"messages": TEXT, "place": place},
        "required": ["messages", "place"],
        "$defs": definitions,
    }


def test_what_says_not_what_it_takes_is_no_tool(api: Api) -> None:
    schemas: list[Any] = [None, {}, {"type": "array"}, {"type": "object", "properties": {}}]
    for schema in schemas:
        make.takes(api.deployment, "other", schema)
        names = [tool["name"] for tool in result(api, "tools/list")["tools"]]
        assert (schema, names) == (schema, ["agent"])
        assert error(api, "tools/call", {"name": "other"}) == (-32602, "Unknown tool: other")


def test_tools_have_names_that_models_take(api: Api) -> None:
    ids = [
        api.post("/assistants", {"graph_id": "agent", "name": name, "description": "said"}).json[
            "assistant_id"
        ]  # type: ignore[index]
        for name in ("agent", "a b/ü", "x" * 200, "x" * 200, "")
    ]
    tools = result(api, "tools/list")["tools"][2:]
    assert [tool["name"] for tool in tools] == [
        f"agent-{ids[0][:8]}",
        "a_b__",
        "x" * 128,
        "x" * 119 + f"-{ids[3][:8]}",
        f"agent-{ids[4][:8]}",
    ]
    assert [tool["title"] for tool in tools[:2]] == ["agent", "a b/ü"]
    assert tools[0]["description"] == "said"


def test_tools_come_in_pages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.deployment_api.protocols.mcp.tools.PAGE", 1)
    first = result(api, "tools/list")
    assert [tool["name"] for tool in first["tools"]] == ["agent"]
    second = result(api, "tools/list", {"cursor": first["nextCursor"]})
    assert [tool["name"] for tool in second["tools"]] == ["other"]
    assert "nextCursor" not in second
    for cursor in ("x", "-1", "9" * 30, 7):
        assert error(api, "tools/list", {"cursor": cursor})[0] == -32602


def test_a_call_is_a_run_without_a_thread(api: Api, notifications: Notifications) -> None:
    calling = called(api, notifications, "agent", {"messages": "hi", "more": 1})
    run = row(calling.run_id)
    assert run["input"] == {"messages": [{"role": "user", "content": "hi"}], "more": 1}
    assert run["metadata"]["mcp"] is True
    assert run["temporary"]
    values = {"messages": [{"type": "human", "content": "hi"}, {"type": "ai", "content": "ho"}]}
    act(calling.run_id, values)
    content = calling.result()
    assert content["isError"] is False
    assert [block["type"] for block in content["content"]] == ["text", "text"]
    assert content["content"][0]["text"] == "ho"
    assert orjson.loads(content["content"][1]["text"]) == values


def test_what_is_no_conversation_answers_with_its_state_and_a_question_is_part_of_it(
    api: Api, notifications: Notifications
) -> None:
    calling = called(api, notifications, "other", {"city": "Rome"})
    assert row(calling.run_id)["input"] == {"city": "Rome"}
    act(calling.run_id, {"city": "Rome", "é": [None]})
    (block,) = calling.result()["content"]
    assert orjson.loads(block["text"]) == {"city": "Rome", "é": [None]}

    calling = called(api, notifications, "other", {"city": "Rome"})
    act(calling.run_id, {"city": "Rome", "__interrupt__": ASKED})
    content = calling.result()
    assert content["isError"] is False
    assert orjson.loads(content["content"][0]["text"])["__interrupt__"] == ASKED


def test_arguments_that_do_not_fit_are_a_tools_error(
    api: Api, notifications: Notifications, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        ("agent", {}, "messages: this field is required"),
        ("agent", {"messages": [{"role": "user"}]}, "messages: must be string"),
        ("other", {"nights": 2}, "city: this field is required"),
        ("other", {"city": "a", "nights": 1.5}, "nights: must be integer"),
        ("other", {"city": None}, "city: must be string"),
        ("other", {"city": "a", "nights": True}, "nights: must be integer"),
    ]
    for tool, arguments, said in rows:
        with subtests.test(tool=tool, arguments=arguments, said=said):
            answer = result(api, "tools/call", {"name": tool, "arguments": arguments})
            assert answer["isError"] is True
            assert said in answer["content"][0]["text"]
            assert not notifications.heard


def test_parameters_of_a_call_are_checked_and_an_unknown_tool_is_named(api: Api) -> None:
    for params in ({}, {"name": 7}, {"name": "agent", "arguments": []}, {"name": "\x00"}):
        assert (params, error(api, "tools/call", params)[0]) == (params, -32602)
    assert error(api, "tools/call", {"name": "x"}) == (-32602, "Unknown tool: x")
    for method in ("resources/list", "prompts/list", "server/discover", "nonsense"):
        assert error(api, method) == (-32601, f"Method not found: {method}")


def test_a_run_that_fails_or_is_cancelled_is_a_tools_error(api: Api, notifications: Notifications) -> None:
    calling = called(api, notifications, "agent", {"messages": "hi"})
    failure = {"error": "ValueError", "message": "boom"}
    Actor(calling.run_id).finish(
        status=RunStatus.ERROR,
        thread_status=ThreadStatus.ERROR,
        error=failure,
        output={"__error__": failure},
    )
    assert calling.result() == {"isError": True, "content": [{"type": "text", "text": "ValueError: boom"}]}

    calling = called(api, notifications, "agent", {"messages": "hi"})
    Actor(calling.run_id).finish(status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.IDLE)
    assert calling.result()["isError"] is True


def test_a_long_call_is_kept_alive_by_line_feeds(api: Api, notifications: Notifications) -> None:
    calling = called(api, notifications, "agent", {"messages": "hi"})
    chunks = calling.response.iter_encoded()
    while next(chunks) != b"\n":
        pass
    act(calling.run_id, {})
    rest = b"".join(chunks)
    assert orjson.loads(rest.strip())["result"]["isError"] is False


def test_progress_is_sent_where_it_is_asked_for(api: Api, notifications: Notifications) -> None:
    calling = called(api, notifications, "agent", {"messages": "hi"}, _meta={"progressToken": "p"})
    assert calling.response.mimetype == "text/event-stream"
    chunks = calling.response.iter_encoded()
    read = [next(chunks)]
    while b"notifications/progress" not in read[-1]:
        read.append(next(chunks))
    act(calling.run_id, {"a": 1})
    *notices, last = rpc.parsed(b"".join([*read, *chunks]).decode())
    assert {notice["method"] for notice in notices} == {"notifications/progress"}
    assert [notice["params"]["progress"] for notice in notices] == list(range(1, len(notices) + 1))
    assert {notice["params"]["progressToken"] for notice in notices} == {"p"}
    assert last["id"] == 7
    assert orjson.loads(last["result"]["content"][0]["text"]) == {"a": 1}


def test_what_each_message_of_a_stream_repeats_has_a_length(api: Api) -> None:
    params = {"name": "agent", "arguments": {"messages": "hi"}, "_meta": {"progressToken": "p" * 1025}}
    code, said = error(api, "tools/call", params)
    assert (code, said) == (-32602, "_meta.progressToken: must have at most 1024 characters")
    for path in ("/mcp", "/a2a/agent"):
        body = {"jsonrpc": "2.0", "id": "i" * 1025, "method": "ping"}
        answer: Any = api.post(path, body, headers=BOTH).json
        assert answer["id"] is None
        assert answer["error"] == {"code": -32600, "message": "id: must have at most 1024 characters"}
        answer = api.post(path, {**body, "id": "i" * 1024}, headers=BOTH).json
        assert answer["id"] == "i" * 1024


def test_a_client_without_streams_gets_json_despite_its_token(api: Api, notifications: Notifications) -> None:
    params = {"name": "agent", "arguments": {"messages": "hi"}, "_meta": {"progressToken": 1}}
    response = post(api, "tools/call", params, headers={"Accept": "application/json"}, buffered=False)
    act(notifications.heard[-1][1], {})
    assert response.mimetype == "application/json"
    assert orjson.loads(response.get_data())["result"]


def test_a_call_holds_a_stream_slot_and_the_rest_do_not(api: Api, notifications: Notifications) -> None:
    api.set(max_streams=1)
    limits.start(api.client.application)
    calling = called(api, notifications, "agent", {"messages": "hi"})
    assert post(api, "tools/call", {"name": "agent", "arguments": {"messages": "x"}}).status_code == 503
    assert result(api, "tools/list")["tools"]
    act(calling.run_id, {})
    assert calling.result()
    assert len(notifications.heard) == 1


def test_the_project_may_switch_it_off(api: Api) -> None:
    make.switched_off(api.deployment, "disable_mcp")
    for path in ("/mcp", "/mcp/"):
        assert post(api, "ping", path=path).status_code == 404
    assert api.get("/a2a/agent").status_code == 200


def test_a_deployment_that_serves_nothing_yet_has_no_tools(client: Any, api: Api) -> None:
    fresh = Api(
        client, make.deployment("fresh", organization_id=api.deployment.organization_id, serving=False)
    )
    assert result(fresh, "tools/list") == {"tools": []}
    assert error(fresh, "tools/call", {"name": "agent"}) == (-32602, "Unknown tool: agent")
