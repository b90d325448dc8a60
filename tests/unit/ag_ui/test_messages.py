"""Messages of a state as AG-UI messages, and the AG-UI form of what graphs store."""

from __future__ import annotations

from typing import Any

from web.deployment_api.protocols.ag_ui import messages, state


def test_messages_of_each_kind_are_shown() -> None:
    call = {"id": "c", "name": "look", "args": {"a": 1}}
    broken = {"id": "d", "name": "look", "args": "{", "error": "no JSON"}
    rows: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        ({"type": "human", "id": "1", "content": "hi", "name": "ann"}, {"role": "user", "content": "hi", "name": "ann"}),
        ({"role": "user", "id": "1", "content": [{"type": "text", "text": "a"}, "b"]}, {"role": "user", "content": "ab"}),
        ({"type": "system", "id": "1", "content": "be kind"}, {"role": "system", "content": "be kind"}),
        ({"type": "ai", "id": "1", "content": ""}, {"role": "assistant", "content": ""}),
        (
            {"type": "ai", "id": "1", "content": [], "tool_calls": [call, {"name": "x"}], "invalid_tool_calls": [broken]},
            {
                "role": "assistant",
                "toolCalls": [
                    {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}},
                    {"id": "d", "type": "function", "function": {"name": "look", "arguments": "{"}},
                ],
            },
        ),
        (
            {"type": "tool", "id": "1", "tool_call_id": "c", "name": "look", "content": "no", "status": "error"},
            {"role": "tool", "toolCallId": "c", "content": "no", "error": "no"},
        ),
        ({"type": "tool", "id": "1", "tool_call_id": "c", "content": [{"a": 1}]}, {"role": "tool", "toolCallId": "c", "content": '[{"a":1}]'}),
        ({"type": "remove", "id": "1"}, None),
    ]  # fmt: skip
    for message, expected in rows:
        shown = [] if expected is None else [{"id": "1", **expected}]
        assert messages.snapshot({"messages": [message]}) == shown, message
    assert messages.snapshot({"messages": [{"type": "human", "content": "x"}]})[0]["id"] == "message-0"
    assert messages.snapshot([1]) == []


def test_media_of_a_user_are_parts() -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        (
            {"type": "image", "base64": "eA==", "mime_type": "image/png"},
            {"type": "image", "source": {"type": "data", "value": "eA==", "mimeType": "image/png"}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://a.example/x.png"}},
            {"type": "image", "source": {"type": "url", "value": "https://a.example/x.png"}},
        ),
        (
            {"type": "file", "data": "eA=="},
            {"type": "document", "source": {"type": "data", "value": "eA==", "mimeType": "application/octet-stream"}},
        ),
        ({"type": "audio", "file_id": "f"}, {"type": "audio", "source": {"type": "file", "value": "f"}}),
        ({"type": "odd"}, None),
        ({"type": "image", "base64": 1}, None),
    ]  # fmt: skip
    for block, part in rows:
        content = [{"type": "text", "text": "see"}, block]
        (shown,) = messages.snapshot({"messages": [{"type": "human", "id": "1", "content": content}]})
        expected = "see" if part is None else [{"type": "text", "text": "see"}, part]
        assert shown["content"] == expected, block


def test_a_part_becomes_a_block_and_the_part_again() -> None:
    for kind in ("image", "audio", "video", "document"):
        for source in (
            {"type": "data", "value": "eA==", "mimeType": "a/b"},
            {"type": "url", "value": "https://a.example/"},
            {"type": "file", "value": "f", "mimeType": "a/b"},
        ):
            sent = {"id": "1", "role": "user", "content": [{"type": kind, "source": source}]}
            assert messages.snapshot({"messages": [messages.to_input(sent)]}) == [sent]


def test_changes_of_values_that_are_no_objects_replace_them() -> None:
    assert state.shown(None) == {}
    assert state.change([1, 2], [1, 2]) is None
    assert state.change({"a": [1]}, {"a": 1}) == {"type": "STATE_SNAPSHOT", "snapshot": {"a": 1}}
    long = {"b": "x" * 100}
    assert state.change({"a": 1, **long}, {"a": True, **long}) == {
        "type": "STATE_DELTA",
        "delta": [{"op": "replace", "path": "/a", "value": True}],
    }
