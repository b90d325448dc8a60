"""A server that speaks the deployment API, identified by its base URL, as a target."""

from __future__ import annotations

import json
from typing import Any

from bench.client import Client, Reply
from bench.targets import Call, TargetError

ANSWER_SECONDS = 30.0


class Server:
    shares_our_process = False

    def __init__(self, base_url: str, headers: dict[str, str], label: str = "server") -> None:
        self.label = label
        self.headers = headers
        self._client = Client(base_url, headers)

    async def create_thread(self, metadata: dict[str, Any] | None = None) -> str:
        reply = await self.post("/threads", {"metadata": metadata} if metadata else {})
        if reply.error or reply.status != 200:
            raise TargetError(f"POST /threads: {reply.error or reply.status} {reply.body[:300]!r}")
        return json.loads(reply.body)["thread_id"]

    async def run(self, call: Call, *, timeout_seconds: float) -> Reply:
        root = f"/threads/{call.thread_id}/runs" if call.thread_id else "/runs"
        path = f"{root}/{'stream' if call.stream_mode else 'wait'}"
        reply = await self._client.post(path, _body(call), timeout_seconds=timeout_seconds)
        reply.error = reply.error or _failure(call, reply)
        return reply

    async def get(self, path: str) -> Reply:
        return await self._client.get(path, timeout_seconds=ANSWER_SECONDS)

    async def post(self, path: str, body: dict[str, Any]) -> Reply:
        return await self._client.post(path, body, timeout_seconds=ANSWER_SECONDS)

    async def watch(self, thread_id: str, reply: Reply) -> None:
        """Follow a thread's stream, filling `reply`, until the task is cancelled or the server ends the stream."""
        await self._client.follow(f"/threads/{thread_id}/stream", reply)

    async def is_listening(self) -> bool:
        return await self._client.is_listening()

    async def aclose(self) -> None:
        await self._client.aclose()


def _body(call: Call) -> dict[str, Any]:
    body: dict[str, Any] = {"assistant_id": call.graph, "input": call.input}
    if call.stream_mode:
        body["stream_mode"] = [call.stream_mode]
    if call.ends_with_client:
        body["on_disconnect"] = "cancel"
    return body


def _failure(call: Call, reply: Reply) -> str:
    """Return why a complete response counts as an error, or an empty string."""
    body = reply.body
    if reply.status != 200:
        return f"status {reply.status}"
    if b"event: error" in body or b'"__error__"' in body:
        return "the run failed"
    if call.proof.encode() not in body:
        return f"not the answer expected: {body.strip()[:40].decode(errors='replace')}"
    return ""
