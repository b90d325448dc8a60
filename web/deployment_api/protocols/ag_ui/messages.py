"""Messages in both directions: AG-UI messages become input of a graph, and messages of a state become AG-UI messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from shared.infra.postgres import dumps
from web.deployment_api.protocols.conversation import AGENTS, USERS, author_of, messages_of, text_of

Json = dict[str, Any]

# Author of a message in a state → role in AG-UI.
ROLES = {
    **dict.fromkeys(USERS, "user"),
    **dict.fromkeys(AGENTS, "assistant"),
    "tool": "tool",
    "ToolMessageChunk": "tool",
    "system": "system",
    "developer": "system",
    "SystemMessageChunk": "system",
}
MEDIA = {"image": "image", "audio": "audio", "video": "video", "document": "file"}  # part → content block
PARTS = {block: part for part, block in MEDIA.items()}
LEFT_OUT = ("reasoning", "activity")  # roles of messages that a graph does not get


def role_of(message: Mapping[str, Any]) -> str | None:
    """Return the AG-UI role of a state's message, or None for a message that AG-UI does not have."""
    return ROLES.get(author_of(message))


# AG-UI → LangChain


def inputs(messages: Sequence[Json]) -> list[Json]:
    """Return the messages that a graph gets. Leaves out reasoning and activities."""
    return [to_input(message) for message in messages if message["role"] not in LEFT_OUT]


def to_input(message: Json) -> Json:
    """Return a validated AG-UI message in the form that graphs take."""
    out: Json = {"id": message["id"], "content": message.get("content") or ""}
    if message.get("name"):
        out["name"] = message["name"]
    match message["role"]:
        case "assistant":
            calls, invalid = _calls(message.get("toolCalls") or ())
            return {**out, "type": "ai", "tool_calls": calls, "invalid_tool_calls": invalid}
        case "tool":
            status = "error" if message.get("error") else "success"
            content = _content(message["content"]) or message.get("error") or ""
            call_id = message["toolCallId"]
            return {**out, "type": "tool", "content": content, "tool_call_id": call_id, "status": status}
        case "user":
            return {**out, "type": "human", "content": _content(message["content"])}
        case _:
            return {**out, "type": "system"}


def _calls(sent: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """Return tool calls with parsed arguments, and those whose arguments are not the JSON of an object."""
    calls, invalid = [], []
    for call in sent:
        function = call["function"]
        try:
            args = orjson.loads(function["arguments"] or "{}")
        except orjson.JSONDecodeError:
            args = None
        if isinstance(args, dict):
            calls.append({"id": call["id"], "name": function["name"], "args": args, "type": "tool_call"})
        else:
            reason = "The arguments are not the JSON of an object"
            invalid.append(
                {"id": call["id"], "name": function["name"], "args": function["arguments"], "error": reason}
            )
    return calls, invalid


def _content(content: Any) -> Any:
    return [_block(part) for part in content] if isinstance(content, list) else content


def _block(part: Json) -> Json:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    if part["type"] == "binary":  # clients before 1.0
        kind = str(part["mimeType"]).partition("/")[0]
        names = {"data": "base64", "url": "url", "id": "file_id"}
        source = {block: part[name] for name, block in names.items() if part.get(name)}
        extras = {"extras": {"filename": part["filename"]}} if part.get("filename") else {}
        return {"type": kind if kind in PARTS else "file", "mime_type": part["mimeType"], **source, **extras}
    source = part["source"]
    name = {"data": "base64", "url": "url", "file": "file_id"}[source["type"]]
    mime_type = {"mime_type": source["mimeType"]} if source.get("mimeType") else {}
    return {"type": MEDIA[part["type"]], name: source["value"], **mime_type}


# LangChain → AG-UI


def snapshot(values: Any) -> list[Json]:
    """Return all messages of a state as AG-UI messages."""
    return [shown for id, message in with_ids(values) if (shown := _shown(id, message))]


def with_ids(values: Any) -> Iterator[tuple[str, Json]]:
    """Yield the messages of a state with their ids. A message without an id is named after its position."""
    for at, message in enumerate(messages_of(values)):
        yield str(message.get("id") or f"message-{at}"), message


def _shown(id: str, message: Json) -> Json | None:
    role = role_of(message)
    if role is None:
        return None
    out: Json = {"id": id, "role": role}
    if isinstance(message.get("name"), str) and role != "tool":
        out["name"] = message["name"]
    if role == "assistant":
        return {**out, **assistant_fields(text_of(message), calls_of(message))}
    if role == "tool":
        error = {"error": tool_text(message)} if message.get("status") == "error" else {}
        return {**out, "toolCallId": str(message.get("tool_call_id")), "content": tool_text(message), **error}
    return {**out, "content": _user_content(message) if role == "user" else text_of(message)}


def assistant_fields(text: str, calls: Sequence[tuple[str, str, str]]) -> Json:
    """Return content and tool calls of an assistant's message. `calls` are id, name and JSON arguments."""
    out: Json = {"content": text} if text or not calls else {}
    if calls:
        out["toolCalls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    return out


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the tool calls of a message as id, name and JSON arguments. Calls without an id are left out."""
    calls = []
    for field in ("tool_calls", "invalid_tool_calls"):
        listed = message.get(field)
        for call in listed if isinstance(listed, list) else ():
            if isinstance(call, dict) and call.get("id") and call.get("name"):
                calls.append((str(call["id"]), str(call["name"]), json_text(call.get("args", {}))))
    return calls


def tool_text(message: Mapping[str, Any]) -> str:
    """Return the content of a tool's message as text: its text if it has one, else its JSON."""
    content = message.get("content")
    return text_of(dict(message)) or ("" if content in ("", None, []) else json_text(content))


def json_text(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else dumps(value)


def _user_content(message: Json) -> str | list[Json]:
    content = message.get("content")
    if not isinstance(content, list):
        return text_of(message)
    parts = [part for block in content if (part := _part(block))]
    return parts if any(part["type"] != "text" for part in parts) else text_of(message)


def _part(block: Any) -> Json | None:
    """Return the part of a content block, or None for a block that AG-UI does not have."""
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if not isinstance(block, dict):
        return None
    if isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    source = _source(block)
    kind = PARTS.get(str(block.get("type")).removesuffix("_url"))
    return {"type": kind, "source": source} if kind and source else None


def _source(block: Json) -> Json | None:
    mime_type = {"mimeType": block["mime_type"]} if isinstance(block.get("mime_type"), str) else {}
    address = block.get("image_url")  # the form of OpenAI
    url = (address.get("url") if isinstance(address, dict) else address) or block.get("url")
    data = block.get("base64") or block.get("data")
    for kind, value in (("data", data), ("url", url), ("file", block.get("file_id"))):
        if isinstance(value, str) and value:
            default = {"mimeType": "application/octet-stream"} if kind == "data" else {}
            return {"type": kind, "value": value, **default, **mime_type}
    return None
