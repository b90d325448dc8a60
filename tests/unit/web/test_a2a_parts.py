"""Parts of A2A messages, and the content blocks of LangChain messages; details of errors."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from web.deployment_api.protocols.a2a import errors, parts
from web.deployment_api.protocols.a2a.follow import encode
from web.deployment_api.protocols.a2a.parts import InvalidResponse
from web.deployment_api.protocols.a2a.shapes import Version03, Version1
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError

A2UI = {"mimeType": "application/json+a2ui"}


def read(*sent: dict[str, Any], with_a2ui: bool = False) -> parts.Contents:
    return parts.read(sent, with_a2ui=with_a2ui)


def test_files_of_both_versions_are_blocks() -> None:
    image = {"type": "image", "base64": "aGk=", "mime_type": "image/png", "extras": {"filename": "a.png"}}
    for sent in (
        {"raw": "aGk=", "mediaType": "image/png", "filename": "a.png"},
        {"raw": "aGk", "media_type": "image/png", "filename": "a.png"},
        {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "image/png", "name": "a.png"}},
        {"kind": "file", "file": {"bytes": "aGk=", "mime_type": "image/png", "name": "a.png"}},
    ):
        assert read(sent).content == [image], sent
    for media_type, kind in (
        ("audio/wav", "audio"),
        ("VIDEO/mp4", "video"),
        ("text/csv", "file"),
        ("application/pdf", "file"),
    ):
        (block,) = read({"url": "http://x/a", "mediaType": media_type}).blocks
        assert block == {"type": kind, "url": "http://x/a", "mime_type": media_type}
    contents = read({"kind": "file", "file": {"uri": "http://x/a"}})
    assert contents.content == [{"type": "file", "url": "http://x/a"}]
    assert contents.media_types == {"message.parts.0": "application/octet-stream"}


def test_contents_keep_the_order_of_the_parts() -> None:
    assert read({"text": "a"}, {"data": {"x": 1}}, {"text": "b"}).content == "a\nb"
    mixed = read({"text": "a"}, {"url": "http://x"}, {"text": "b"}).content
    assert [block["type"] for block in mixed] == ["text", "file", "text"]
    assert read({"data": {"x": 1}}, {"data": {"y": 2}}).data == {"x": 1, "y": 2}
    assert (read({"data": None}).has_data, read({"text": "a"}).has_data) == (True, False)


def test_base64_is_read_as_protojson_reads_it() -> None:
    for sent in ("-_8=", "-_8", "+/8="):
        assert parts.standard_base64(sent) == "+/8="
    assert parts.standard_base64("") == ""
    for bad in ("a", "a===", "aGk=\n", "a Gk", "héh", "aGk=aGk="):
        with pytest.raises(ValueError):
            parts.standard_base64(bad)


def test_data_of_a2ui_is_a_block_while_the_extension_is_active() -> None:
    for mode in parts.A2UI_MODES:
        sent = {"data": {"beginRendering": {}}, "metadata": {"mimeType": mode}}
        contents = read(sent, with_a2ui=True)
        assert contents.content == [{"type": "data", **sent}]
        assert not contents.has_data
        with pytest.raises(RpcError, match="not active"):
            read(sent)
    with pytest.raises(RpcError, match="262144 bytes"):
        read({"data": "x" * parts.A2UI_BYTES, "metadata": A2UI}, with_a2ui=True)


def test_blocks_are_parts() -> None:
    blocks: list[Any] = [
        {"type": "text", "text": "a"},
        "b",
        {"type": "reasoning", "reasoning": "hidden"},
        {"type": "text", "text": "c"},
        {"type": "image", "base64": "aGk=", "mime_type": "image/png", "extras": {"filename": "a.png"}},
        {"type": "file", "data": "aGk=", "mime_type": "application/pdf", "filename": "a.pdf"},
        {"type": "audio", "url": "http://x/a"},
        {"type": "file", "file_id": "f1"},
        {"type": "tool_call", "name": "t"},
        {"type": "data", "data": [1]},
        {"type": "non_standard", "value": {"x": 1}},
        {"type": "data", "data": {"ui": 1}, "metadata": A2UI},
        {"type": "text", "text": "d"},
        7,
    ]
    shown: list[Any] = [
        {"text": "abc"},
        {"raw": "aGk=", "mediaType": "image/png", "filename": "a.png"},
        {"raw": "aGk=", "mediaType": "application/pdf", "filename": "a.pdf"},
        {"url": "http://x/a"},
        {"data": [1]},
        {"data": {"x": 1}},
    ]
    assert parts.of_message({"content": blocks}) == [*shown, {"text": "d"}]
    a2ui = {"data": {"ui": 1}, "metadata": A2UI}
    assert parts.of_message({"content": blocks}, with_a2ui=True) == [*shown, a2ui, {"text": "d"}]
    assert parts.of_message({"content": "hi"}) == [{"text": "hi"}]
    assert parts.of_message({"content": ""}) == parts.of_message({}) == []
    for bad in ("no base64", 7):
        with pytest.raises(InvalidResponse):
            parts.of_message({"content": [{"type": "image", "base64": bad}]})


def test_media_types_are_accepted_by_name_and_by_kind() -> None:
    modes = ("text/plain", "image/*")
    for media_type in ("text/plain", "Text/Plain; charset=utf-8", "image/png"):
        assert parts.is_accepted(media_type, modes)
    for media_type in ("text/html", "application/pdf", ""):
        assert not parts.is_accepted(media_type, modes)
    assert parts.is_accepted("application/pdf", ("*/*",))


def test_errors_of_version_1_have_details() -> None:
    def data(error: RpcError, *, shapes: type[Version1] = Version1, task_id: str | None = None) -> Any:
        return orjson.loads(shapes().failure(1, error, task_id=task_id))["error"].get("data")

    for code, reason in errors.REASONS.items():
        (details,) = data(RpcError(code, "no"), task_id="t")
        assert details == {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": reason,
            "domain": "a2a-protocol.org",
            "metadata": {"taskId": "t"},
        }
    (details,) = data(RpcError(INVALID_PARAMS, "message.parts.0.raw: must be base64"))
    assert details["fieldViolations"] == [{"field": "message.parts.0.raw", "description": "must be base64"}]
    (details,) = data(RpcError(INVALID_PARAMS, "something else"))
    assert details["fieldViolations"] == [{"field": "", "description": "something else"}]
    assert data(RpcError(METHOD_NOT_FOUND, "no")) is None
    assert data(RpcError(errors.TASK_NOT_FOUND, "no"), shapes=Version03) is None


def test_an_event_is_one_line_for_every_client() -> None:
    body = orjson.dumps({"text": "a\u0085b\u2028c\u2029d\n"})
    event = encode(body)
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert len(event.decode().splitlines()) == 2
    assert orjson.loads(event.removeprefix(b"data: ")) == {"text": "a\u0085b\u2028c\u2029d\n"}
