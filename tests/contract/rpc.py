"""JSON-RPC calls of MCP and A2A clients, through Flask's client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
from werkzeug.test import TestResponse

if TYPE_CHECKING:
    from tests.contract.conftest import Api, Notifications

BOTH = {"Accept": "application/json, text/event-stream"}
ID = 7

CHAT = {
    "type": "object",
    "properties": {"messages": {"type": "array", "items": {"$ref": "#/$defs/Message"}}},
    "$defs": {"Message": {"type": "object"}},
}
TRIP = {
    "type": "object",
    "title": "Trip",
    "properties": {"city": {"type": "string"}, "nights": {"type": "integer"}, "note": {}},
    "required": ["city"],
}


def post(api: Api, path: str, method: str, params: Any = None, **more: Any) -> TestResponse:
    body = {"jsonrpc": "2.0", "id": ID, "method": method} | ({} if params is None else {"params": params})
    return api.post(path, body, **{"headers": BOTH, **more})


def result(api: Api, path: str, method: str, params: Any = None, **more: Any) -> Any:
    response = post(api, path, method, params, **more)
    assert (response.status_code, response.mimetype) == (200, "application/json"), response.text
    return answered(response)["result"]


def error(api: Api, path: str, method: str, params: Any = None, **more: Any) -> tuple[int, str]:
    """Return code and message of an error. A request for a stream receives its error as a stream."""
    response = post(api, path, method, params, **more)
    assert response.status_code == 200, response.text
    is_stream = response.mimetype == "text/event-stream"
    found = next(events(response))["error"] if is_stream else answered(response)["error"]
    return found["code"], found["message"]


def answered(response: TestResponse) -> Any:
    """Parse the answer, which line feeds may precede."""
    found = orjson.loads(response.get_data().strip())
    assert (found["jsonrpc"], found["id"]) == ("2.0", ID)
    return found


def events(response: TestResponse) -> Iterator[Any]:
    """Yield the messages of a stream without its heartbeats."""
    return parsed(response.text)


def parsed(text: str) -> Iterator[Any]:
    """Yield the messages in the text of a stream without its heartbeats."""
    for part in text.replace("\r\n", "\n").split("\n\n"):
        name, _, data = f"\n{part}".partition("\ndata: ")
        if data:
            assert name.strip() in ("", "event: message")
            yield orjson.loads(data)


class Called:
    """A call that created a run: the open response and the run's id."""

    def __init__(
        self, api: Api, notifications: Notifications, path: str, method: str, params: Any, **more: Any
    ) -> None:
        before = len(notifications.heard)
        self.response = post(api, path, method, params, buffered=False, **more)
        assert self.response.status_code == 200, self.response.text
        assert len(notifications.heard) == before + 1, self.response.text
        self.run_id = notifications.heard[-1][1]

    def result(self) -> Any:
        return answered(self.response)["result"]

    def results(self) -> list[Any]:
        return [event["result"] for event in events(self.response)]


def text_message(text: str = "hi", **more: Any) -> dict[str, Any]:
    """Return a user's message in the format of version 1.0."""
    return {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **more}
