"""The ASGI lifespan of a project's app: startup before the first request, shutdown after the last."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ..loader import user_traceback

log = logging.getLogger("runyard")

TRACEBACK_LINES = 30


class LifespanFailed(Exception):
    """An app could not start. The message is for the person who deploys."""


class Lifespan:
    """The lifespan of one app, entered once. An app that does not support lifespans is served without one."""

    def __init__(self, app: Any) -> None:
        self.state: dict[str, Any] = {}  # the state that the lifespan sets for requests
        self._app = app
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._refusal: str | None = None
        self._is_entered = asyncio.Event()

    async def enter(self) -> None:
        """Wait until the app has started. Raises LifespanFailed."""
        self._inbox.put_nowait({"type": "lifespan.startup"})
        self._task = asyncio.get_running_loop().create_task(self._run())
        await self._is_entered.wait()
        if self._refusal is None:
            if self._error is not None:
                log.info("http.app is served without a lifespan: %r", self._error)
            return
        await asyncio.wait([self._task], timeout=1)
        why = user_traceback(self._error) if self._error else _end(self._refusal)
        raise LifespanFailed(f"http.app: its lifespan failed at the start\n{why}".rstrip())

    async def leave(self, seconds: float) -> None:
        """Shut the app down. Waits at most this many seconds."""
        if self._task is None or self._task.done():
            return
        self._inbox.put_nowait({"type": "lifespan.shutdown"})
        _, late = await asyncio.wait([self._task], timeout=seconds)
        if late:
            log.warning("http.app: its lifespan did not end within %s s", seconds)
        elif self._error is not None:
            log.error("http.app: its lifespan failed at the end", exc_info=self._error)

    async def _run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        try:
            await self._app(scope, self._inbox.get, self._send)
        except BaseException as error:  # any exception of the app
            self._error = error
        self._is_entered.set()

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] in ("lifespan.startup.failed", "lifespan.shutdown.failed"):
            self._refusal = str(message.get("message") or "")
        if message["type"].startswith("lifespan.startup."):
            self._is_entered.set()


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-TRACEBACK_LINES:])
