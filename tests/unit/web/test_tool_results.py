"""Results of MCP tools: the content for texts, files and states."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from mcp.types import CallToolResult

from shared.eventlog.events import Event
from web.deployment_api.protocols import options
from web.deployment_api.protocols.json_rpc import Call
from web.deployment_api.protocols.mcp import progress, results
from web.deployment_api.protocols.mcp.envelope import McpRequest

CHAT = {"type": "object", "properties": {"messages": {"type": "array"}}}
PIXEL = "iVBORw0KGgo="
LINK = "https://files.example/a/report.pdf?x=1"
REQUEST = McpRequest(Call("tools/call", {}, 1), True, {"name": "n", "version": "1"})


def tool(*, takes: Any = CHAT, output: Any = None, **chosen: Any) -> dict[str, Any]:
    return {"input_schema": takes, "output_schema": output, "options": chosen}


def content_of(*blocks: Any) -> list[dict[str, Any]]:
    """Return the content of a result before the state. The client of the older line must be able to read it."""
    values = {"messages": [{"type": "human", "content": "?"}, {"type": "ai", "content": [*blocks]}]}
    result = results.tool_result(tool(), orjson.dumps(values))
    CallToolResult.model_validate(result)
    *content, state = result["content"]
    assert orjson.loads(state["text"]) == values
    return content


def test_a_file_has_the_content_of_its_kind(subtests: pytest.Subtests) -> None:
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    link = {"type": "resource_link", "uri": LINK, "name": "report.pdf"}
    rows: list[tuple[Any, Any]] = [
        ({"type": "image", "base64": PIXEL, "mime_type": "image/png"}, image),
        ({"type": "image", "source_type": "base64", "data": PIXEL, "mime_type": "image/png"}, image),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}, image),
        ({"type": "image_url", "image_url": f"data:image/png;base64,{PIXEL}"}, image),
        ({"type": "image", "base64": PIXEL}, {**image, "mimeType": "image/*"}),
        ({"type": "audio", "base64": PIXEL, "mime_type": "audio/wav"},
         {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"}),
        ({"type": "file", "base64": PIXEL, "mime_type": "application/pdf", "extras": {"filename": "a ü.pdf"}},
         {"type": "resource", "resource":
             {"uri": "attachment:a%20%C3%BC.pdf", "mimeType": "application/pdf", "blob": PIXEL}}),
        ({"type": "video", "base64": PIXEL},
         {"type": "resource", "resource":
             {"uri": "attachment:video", "mimeType": "application/octet-stream", "blob": PIXEL}}),
        ({"type": "file", "url": LINK}, link),
        ({"type": "file", "url": LINK, "mime_type": "application/pdf", "filename": "x"},
         {**link, "name": "x", "mimeType": "application/pdf"}),
        ({"type": "image", "url": "https://files.example"},
         {"type": "resource_link", "uri": "https://files.example", "name": "image"}),
    ]  # fmt: skip
    for block, content in rows:
        with subtests.test(block=block):
            assert content_of(block) == [content]
    assert content_of({"type": "text", "text": "see "}, rows[0][0], "this") == [
        {"type": "text", "text": "see this"},
        image,
    ]


def test_what_clients_would_refuse_is_left_out(subtests: pytest.Subtests) -> None:
    blocks: list[Any] = [
        {"type": "image", "base64": "no base64"},
        {"type": "image", "base64": PIXEL.rstrip("=")},
        {"type": "image", "base64": 7, "url": None},
        {"type": "image"},
        {"type": "image", "url": "no address"},
        {"type": "image", "url": "https://[::1"},
        {"type": "image", "url": "https://a b/c"},
        {"type": "image", "url": "https://a:99999/"},
        {"type": "image", "url": "/etc/passwd"},
        {"type": "image_url", "image_url": []},
        {"type": ["image"], "base64": PIXEL},
        {"type": "tool_use", "input": {}},
        7,
        None,
    ]
    for block in blocks:
        with subtests.test(block=block):
            assert content_of(block) == []


def test_a_structured_tool_answers_with_the_state(subtests: pytest.Subtests) -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    structured = tool(takes={}, output=schema, structured=True)
    deep = b'{"a":' * 252 + b"1" + b"}" * 252
    for state in (b'{"a":1}', deep):
        result = results.tool_result(structured, state)
        assert state in REQUEST.result(result)
    assert "structuredContent" not in results.tool_result(structured, b"[1]")
    assert "structuredContent" not in results.tool_result(tool(takes={}, output=schema), b'{"a":1}')
    assert "structuredContent" not in results.tool_result(tool(takes={}, structured=True), b'{"a":1}')


def test_an_event_is_never_larger_than_the_client_of_python_takes() -> None:
    text = "x" * 600_000
    values = {"messages": [{"type": "ai", "content": text}]}
    for shaped in (tool(), tool(output={}, structured=True)):
        result = results.tool_result(shaped, orjson.dumps(values))
        event = progress.event_of(REQUEST, result)
        assert len(event) <= 1024 * 1024
        sent = orjson.loads(event.partition(b"data: ")[2])["result"]
        assert "left out" in sent["content"][-1]["text"]
        is_structured = "structuredContent" in result
        assert sent["isError"] is is_structured
        assert is_structured or sent["content"][0]["text"] == text
    large = results.tool_result(tool(), orjson.dumps({"messages": [{"type": "ai", "content": text * 2}]}))
    assert (
        orjson.loads(progress.event_of(REQUEST, large).partition(b"data: ")[2])["result"]["isError"] is True
    )
    small = results.tool_result(tool(), b"{}")
    assert progress.event_of(REQUEST, small) == b"event: message\ndata: " + REQUEST.result(small) + b"\n\n"


def test_progress_names_the_node_that_ended() -> None:
    rows: list[tuple[str, bytes, str]] = [
        ("updates", b'{"agent":{"messages":[]}}', "agent"),
        ("updates", b'{"a \\"b\\" \\u00e9":null}', 'a "b" é'),
        ("updates", b'{"__interrupt__":[]}', ""),
        ("updates", b"{}", ""),
        ("updates", b"null", ""),
        ("values", b'{"agent":1}', ""),
    ]
    for name, data, node in rows:
        assert (data, progress.node_of(Event(1, 0, name, data))) == (data, node)


def test_an_invalid_time_before_a_task_is_ignored() -> None:
    for invalid in ("soon", True, -1, 1e9, None, [1]):
        assert options.task_after(tool(task_after=invalid)) == options.TASK_AFTER_SECONDS
    assert options.task_after(tool(task_after=0)) == 0
