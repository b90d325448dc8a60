"""Results of tools: the content that clients get for the state of a run."""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from shared.eventlog.events import Event
from shared.infra.postgres import Row, loads
from shared.models import RunStatus
from shared.runs import end_event
from web.deployment_api.protocols import options
from web.deployment_api.protocols.conversation import Media, media_of, messages_of, text_of
from web.deployment_api.runs.follower import RunFollower

Content = dict[str, Any]

UNKNOWN_TYPE = "application/octet-stream"


def tool_result(tool: Row, output: bytes) -> dict[str, Any]:
    """Return the result for the output of a run: the last message, and the state as JSON."""
    values = loads(output)
    error = values.get("__error__") if isinstance(values, dict) else None
    if error is not None:
        return failed(f"{error.get('error')}: {error.get('message')}")
    result = {"content": [*_last_message(values), text_content(output.decode())], "isError": False}
    if options.is_structured(tool) and isinstance(values, dict):
        result["structuredContent"] = orjson.Fragment(output)  # encoding it again could nest it too deep
    return result


def of_run(tool: Row, follower: RunFollower, last: Event | None) -> dict[str, Any]:
    """Return the result for a run that has ended. `last` is the last event of its log."""
    if last is not None and end_event.status_of(last) == RunStatus.INTERRUPTED:
        return failed("The run was cancelled")
    return tool_result(tool, follower.output(last))


def failed(reason: str) -> dict[str, Any]:
    return {"content": [text_content(reason)], "isError": True}


def without_state(result: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return a result whose last content, the state, is replaced by the reason.

    A client refuses the result of a structured tool that lacks `structuredContent`, unless it is an error.
    """
    if "structuredContent" in result:
        return failed(reason)
    return {**result, "content": [*result["content"][:-1], text_content(reason)]}


def text_content(text: str) -> Content:
    return {"type": "text", "text": text}


def _last_message(values: Any) -> Iterator[Content]:
    """Yield the text of a conversation's last message, and its files."""
    messages = messages_of(values)
    if not messages:
        return
    text = text_of(messages[-1])
    if text:
        yield text_content(text)
    blocks = messages[-1].get("content")
    for media in map(media_of, blocks if isinstance(blocks, list) else []):
        content = None if media is None else _media_content(media)
        if content is not None:
            yield content


def _media_content(media: Media) -> Content | None:
    """Return the content for a file, or None if its base64 or its address is invalid: clients refuse both."""
    if media.url is not None:
        return _link(media, media.url) if _is_address(media.url) else None
    if media.base64 is None or not _is_base64(media.base64):
        return None
    if media.kind in ("image", "audio"):
        mime_type = media.mime_type or f"{media.kind}/*"
        return {"type": media.kind, "data": media.base64, "mimeType": mime_type}
    mime_type = media.mime_type or UNKNOWN_TYPE
    resource = {
        "uri": f"attachment:{quote(media.name or media.kind)}",
        "mimeType": mime_type,
        "blob": media.base64,
    }
    return {"type": "resource", "resource": resource}


def _link(media: Media, url: str) -> Content:
    name = media.name or PurePosixPath(urlsplit(url).path).name or media.kind
    link = {"type": "resource_link", "uri": url, "name": name}
    return link | ({"mimeType": media.mime_type} if media.mime_type else {})


def _is_base64(text: str) -> bool:
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return False
    return True


def _is_address(url: str) -> bool:
    """Return whether a text is an absolute address that clients can parse."""
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return (
        url.isascii()
        and url.isprintable()
        and " " not in url
        and bool(parts.scheme and parts.hostname)
        and has_port
    )
