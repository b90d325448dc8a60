"""A project's own ASGI app (`http.app`): loading, lifespan and requests."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from ..loader import LoadFailed, Modules, load_object
from .app_exchanges import HttpCall, SocketCall
from .exchanges import Exchanges
from .lifespan import Lifespan

KEY = "http.app"
# Timeouts of requests and of the lifespan at shutdown; together less than the runner waits for a host to stop.
END_SECONDS, LEAVE_SECONDS = 1.5, 2.5
# How long a request may continue after its client has disconnected.
GIVE_UP_SECONDS = 5.0


class App:
    """The app and the requests in progress."""

    def __init__(self, app: Any, exchanges: Exchanges) -> None:
        self.app = app
        self._exchanges = exchanges
        self._lifespan = Lifespan(app)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Enter the app's lifespan. Raises LifespanFailed."""
        await self._lifespan.enter()

    def open(self, id: bytes, head: dict[str, Any]) -> None:
        """Start a task that serves a request or WebSocket."""
        exchange = self._exchanges.begin(id)
        kind = SocketCall if head["type"] == "websocket" else HttpCall
        call = kind(exchange, head)
        task = self._exchanges.connection.loop.create_task(call.run(self.app, dict(self._lifespan.state)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange.on_close = lambda: self._give_up_later(task)

    async def stop(self) -> None:
        """End the requests in progress, at most END_SECONDS, and leave the lifespan, at most LEAVE_SECONDS."""
        self._exchanges.close_all()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=END_SECONDS)
            for task in late:
                task.cancel()
        await self._lifespan.leave(LEAVE_SECONDS)

    def _give_up_later(self, task: asyncio.Task[None]) -> None:
        self._exchanges.connection.loop.call_later(GIVE_UP_SECONDS, task.cancel)


def load(location: str, modules: Modules) -> Any:
    """Load the project's app. Raises LoadFailed."""
    found = load_object(KEY, location, modules)
    if not _takes_three(found):
        raise LoadFailed(
            f"{KEY}: {location} is no ASGI app, called with scope, receive and send: {type(found).__name__}"
        )
    return found


def _takes_three(value: Any) -> bool:
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # implemented in C, without a signature
        return True
    return True
