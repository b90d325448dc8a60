"""Parts of messages and artifacts, and the content blocks of LangChain messages that they become.

A part is kept in the form of version 1.0: `text`, `raw` (base64) or `url` with `mediaType` and `filename`, or `data`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.infra.postgres import dumps
from shared.infra.system import let_others_run
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError

TEXT_MODE, JSON_MODE, BINARY_MODE = "text/plain", "application/json", "application/octet-stream"
FILE_MODES = ("image/*", "audio/*", "video/*", BINARY_MODE)
MEDIA = ("image", "audio", "video")  # block types, which are also the first halves of media types
A2UI_MODE = "application/json+a2ui"
A2UI_MODES = (A2UI_MODE, "application/a2ui+json")
A2UI_BYTES = 256 * 1024
MAX_NAME = 1024
LARGE = 100_000  # characters of base64 whose check takes noticeable time

Part = dict[str, Any]
Block = dict[str, Any]

_CONTENTS = ("text", "raw", "url", "data", "file")
_URL_SAFE = str.maketrans("-_", "+/")
_UPPER = re.compile(r"[A-Z]")


class InvalidResponse(Exception):
    """A message of the graph cannot be shown as A2A."""


@dataclass(slots=True)
class Contents:
    """The parts of a message: content blocks in their order, and the data.

    `media_types` are those of the files, by the path of their part. `has_data` distinguishes no data from null.
    """

    blocks: list[Block] = field(default_factory=list)
    media_types: dict[str, str] = field(default_factory=dict)
    data: Any = None
    has_data: bool = False

    @property
    def is_text(self) -> bool:
        return all(block["type"] == "text" for block in self.blocks)

    @property
    def text(self) -> str:
        return "\n".join(block["text"] for block in self.blocks)

    @property
    def content(self) -> str | list[Block]:
        """The content of a LangChain message: a text, or a list if there is anything but text."""
        return self.text if self.is_text else self.blocks


def named(sent: Mapping[str, Any], name: str) -> Any:
    """Return a member by its name in camelCase, or in snake_case as parsers of ProtoJSON accept it."""
    return sent[name] if name in sent else sent.get(_UPPER.sub(lambda match: f"_{match[0].lower()}", name))


def read(parts: Sequence[Mapping[str, Any]], *, with_a2ui: bool) -> Contents:
    """Return the contents of a message. Raises RpcError, which names the invalid part."""
    contents = Contents()
    for at, part in enumerate(parts):
        path = f"message.parts.{at}"
        sent = [name for name in _CONTENTS if part.get(name) is not None or (name == "data" and name in part)]
        if len(sent) != 1:
            raise _invalid(path, "must have exactly one of text, raw, url and data, or file in version 0.3")
        if sent == ["text"]:
            contents.blocks.append({"type": "text", "text": _string(path, part, "text", maximum=None)})
        elif sent == ["data"]:
            _add_data(contents, path, part, with_a2ui=with_a2ui)
        else:
            block, media_type = _file(path, part)
            contents.blocks.append(block)
            contents.media_types[path] = media_type
    return contents


def _add_data(contents: Contents, path: str, part: Mapping[str, Any], *, with_a2ui: bool) -> None:
    data, metadata = part["data"], part.get("metadata")
    if _is_a2ui(metadata):
        if not with_a2ui:
            raise _invalid(path, "the extension A2UI is not active for this call")
        if len(dumps(data).encode()) > A2UI_BYTES:
            raise _invalid(path, f"A2UI data must have at most {A2UI_BYTES} bytes")
        contents.blocks.append({"type": "data", "data": data, "metadata": metadata})
    elif not contents.has_data:
        contents.data, contents.has_data = data, True
    elif isinstance(data, dict) and isinstance(contents.data, dict):
        contents.data = {**contents.data, **data}
    else:
        raise _invalid(path, "several parts with data must all be objects")


def _is_a2ui(metadata: Any) -> bool:
    return isinstance(metadata, dict) and named(metadata, "mimeType") in A2UI_MODES


def _file(path: str, part: Mapping[str, Any]) -> tuple[Block, str]:
    """Return the block of a file, and its media type."""
    if part.get("file") is None:
        path_of_file, sent = path, part
        names = {"raw": "raw", "url": "url", "mediaType": "mediaType", "filename": "filename"}
    else:
        path_of_file, sent = f"{path}.file", part["file"]
        names = {"raw": "bytes", "url": "uri", "mediaType": "mimeType", "filename": "name"}
        if not isinstance(sent, dict):
            raise _invalid(path_of_file, "must be an object")
    has_bytes, has_url = sent.get(names["raw"]) is not None, sent.get(names["url"]) is not None
    if has_bytes == has_url:
        raise _invalid(path_of_file, f"must have either {names['raw']} or {names['url']}")
    media_type = _string(path_of_file, sent, names["mediaType"], is_optional=True)
    kind = media_type.partition("/")[0].lower()
    block: Block = {"type": kind if kind in MEDIA else "file"}
    if has_bytes:
        text = _string(path_of_file, sent, names["raw"], maximum=None)
        try:
            block["base64"] = standard_base64(text)
        except ValueError:
            raise _invalid(f"{path_of_file}.{names['raw']}", "must be base64") from None
    else:
        block["url"] = _string(path_of_file, sent, names["url"], maximum=None)
    if media_type:
        block["mime_type"] = media_type
    if filename := _string(path_of_file, sent, names["filename"], is_optional=True):
        block["extras"] = {"filename": filename}
    return block, media_type or BINARY_MODE


def _string(
    path: str,
    sent: Mapping[str, Any],
    name: str,
    *,
    is_optional: bool = False,
    maximum: int | None = MAX_NAME,
) -> str:
    value = named(sent, name)
    if value is None and is_optional:
        return ""
    if not isinstance(value, str) or (maximum is not None and len(value) > maximum):
        limit = "" if maximum is None else f" of at most {maximum} characters"
        raise _invalid(f"{path}.{name}", f"must be a string{limit}")
    return value


def _invalid(path: str, problem: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"{path}: {problem}")


def standard_base64(text: str) -> str:
    """Return base64 with the standard alphabet and padding. Raises ValueError.

    Accepts the URL-safe alphabet and missing padding, as parsers of ProtoJSON do.
    """
    if len(text) > LARGE:
        let_others_run()
    if "-" in text or "_" in text:
        text = text.translate(_URL_SAFE)
    if not text.endswith("="):
        text += "=" * (-len(text) % 4)
    binascii.a2b_base64(text, strict_mode=True)
    return text


def is_accepted(media_type: str, modes: Collection[str]) -> bool:
    """Return whether a media type is one of the modes, which may name all types of a kind, such as `image/*`."""
    plain = media_type.partition(";")[0].strip().lower()
    return plain in modes or f"{plain.partition('/')[0]}/*" in modes or "*/*" in modes


def of_message(message: Mapping[str, Any], *, with_a2ui: bool = False) -> list[Part]:
    """Return the parts of a LangChain message: a part for each stretch of text, for each file and for each data block.

    Leaves out other blocks, such as reasoning and tool calls. Raises InvalidResponse for a file that is not base64.
    """
    content = message.get("content")
    blocks = content if isinstance(content, list) else [content]
    shown: list[Part] = []
    for part in _of_blocks(blocks, with_a2ui=with_a2ui):
        if "text" in part and shown and "text" in shown[-1]:
            shown[-1] = {"text": shown[-1]["text"] + part["text"]}
        else:
            shown.append(part)
    return shown


def _of_blocks(blocks: Sequence[Any], *, with_a2ui: bool) -> Iterator[Part]:
    for block in blocks:
        if isinstance(block, str):
            yield from [{"text": block}] if block else []
        elif not isinstance(block, dict):
            continue
        elif block.get("type") in (*MEDIA, "file"):
            yield from _of_file(block)
        elif block.get("type") == "data" and "data" in block:
            if not _is_a2ui(block.get("metadata")):
                yield {"data": block["data"]}
            elif with_a2ui:
                yield {"data": block["data"], "metadata": block["metadata"]}
        elif block.get("type") == "non_standard" and "value" in block:
            yield {"data": block["value"]}
        elif isinstance(block.get("text"), str) and block["text"]:
            yield {"text": block["text"]}


def _of_file(block: Mapping[str, Any]) -> Iterator[Part]:
    encoded = block.get("base64") if block.get("base64") is not None else block.get("data")
    extras = block.get("extras")
    filename = extras.get("filename") if isinstance(extras, dict) else None
    texts = {"mediaType": block.get("mime_type"), "filename": block.get("filename") or filename}
    about = {name: text for name, text in texts.items() if isinstance(text, str) and text}
    if encoded is not None:
        try:
            yield {"raw": standard_base64(encoded), **about}
        except (ValueError, AttributeError, TypeError):
            raise InvalidResponse(f"a block of type {block['type']} is not base64") from None
    elif isinstance(block.get("url"), str):
        yield {"url": block["url"], **about}
