"""The transformers that a graph was compiled with, at work on protocol v2's events.

A transformer sees the events of the run in the library's own form, may change them or leave them out, and may put
something of its own into channels with names. What one fails on is left out too, and all content where they cannot be
made: they may be there to hide something. Graph libraries that know no transformers have none.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from langgraph.pregel import Pregel

from ..serialization import text_of
from .writer import MODES, ProtocolWriter

log = logging.getLogger("runyard")

Chunk = tuple[tuple[str, ...], str, Any]

# A built-in one folds these into what it makes of them and leaves them out for the readers in its own process: that
# says nothing about what readers out here may see.
NEVER_LEFT_OUT = frozenset({"tasks", "checkpoints"})
CUSTOM = "custom:"


async def transformed(
    graph: Pregel, writer: ProtocolWriter, chunks: AsyncGenerator[Chunk, None]
) -> AsyncGenerator[Chunk, None]:
    """The same chunks. Between one and the next, the graph's transformers have their way with the first's events."""
    factories: tuple[Callable[..., Any], ...] = tuple(getattr(graph, "stream_transformers", None) or ())
    transformers = _transformers(factories) if factories else None
    async with contextlib.aclosing(chunks):
        if transformers is None:
            if factories:
                writer.intercept = _leave_out
            async for chunk in chunks:
                yield chunk
            return
        line = _Line(transformers, writer)
        writer.intercept = line.events.append
        try:
            async for chunk in chunks:
                yield chunk  # whoever takes it writes its events into the line
                await line.work()
            await line.finish()
        except BaseException as error:
            await line.fail(error)
            raise
        finally:
            writer.intercept = None


class _Line:
    """Events on their way through the transformers."""

    def __init__(self, transformers: Any, writer: ProtocolWriter) -> None:
        self.events: list[dict[str, Any]] = []
        self._mux = transformers
        self._writer = writer
        self._kept = aiter(transformers._events)
        self._made = transformers._events._items

    async def work(self) -> None:
        """Pass on what has come since."""
        events, self.events[:] = list(self.events), []
        for event in events:
            try:
                await self._mux.apush(event)
            except Exception as error:  # a transformer's own, of any kind
                log.warning("a stream transformer failed: %s", text_of(error, repr), exc_info=error)
            self._write(event)

    async def finish(self) -> None:
        """Let them add what they know only at the end."""
        try:
            await self._mux.aclose()
        except Exception as error:
            log.warning("a stream transformer failed: %s", text_of(error, repr), exc_info=error)
        self._write(None)

    async def fail(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):
            await self._mux.afail(error)
        self._write(None)

    def _write(self, pushed: dict[str, Any] | None) -> None:
        """Write what has come out; `pushed` has gone in."""
        is_kept = False
        while self._made:
            _, event = self._made.popleft()
            if event is pushed:
                is_kept = True
                self._write_own(event)
            else:
                self._write_made(event)
        if pushed is not None and not is_kept and pushed["method"] in NEVER_LEFT_OUT:
            self._write_own(pushed)

    def _write_own(self, event: dict[str, Any]) -> None:
        params = event["params"]
        try:
            self._writer.write(
                event["method"], tuple(params["namespace"]), params["data"], params["timestamp"]
            )
        except Exception as error:  # it may have made anything of it
            log.warning("a stream transformer's event cannot be written", exc_info=error)

    def _write_made(self, event: dict[str, Any]) -> None:
        """What was put into a channel with a name; channels named as ours are for readers in the process."""
        method, params = event["method"], event["params"]
        if method not in MODES and method != "lifecycle":
            self._writer.write_named(method.removeprefix(CUSTOM), tuple(params["namespace"]), params["data"])


def _transformers(factories: Sequence[Callable[..., Any]]) -> Any:
    """The library's dispatcher with the graph's own transformers; None where they cannot be made."""
    try:
        from langgraph.stream._mux import StreamMux

        return StreamMux(factories=list(factories), is_async=True)
    except Exception as error:
        log.warning(
            "the graph's stream transformers cannot be used, so protocol v2 shows no content of this run: %s",
            text_of(error, repr),
            exc_info=error,
        )
        return None


def _leave_out(event: dict[str, Any]) -> None:
    """Nobody gets it."""
