"""Application of a graph's own stream transformers to the events of protocol v2.

A transformer receives the run's events in LangGraph's form. It may change or drop them, and may write its own events
to named channels. Transformers may exist to hide data. An event on which a transformer fails is therefore dropped, and
if the transformers cannot be created, all content is dropped. Older versions of LangGraph have no transformers.
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

# A built-in transformer of LangGraph drops these events because readers in its own process get them in another form.
# It does not mean to hide them, so clients of this service still receive them.
NEVER_LEFT_OUT = frozenset({"tasks", "checkpoints"})
CUSTOM = "custom:"


async def transformed(
    graph: Pregel, writer: ProtocolWriter, chunks: AsyncGenerator[Chunk, None]
) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks unchanged. After each chunk, pass its events through the graph's transformers."""
    factories: tuple[Callable[..., Any], ...] = tuple(getattr(graph, "stream_transformers", None) or ())
    transformers = _transformers(factories) if factories else None
    async with contextlib.aclosing(chunks):
        if transformers is None:
            if factories:
                writer.intercept = _leave_out
            async for chunk in chunks:
                yield chunk
            return
        pipeline = _Pipeline(transformers, writer)
        writer.intercept = pipeline.events.append
        try:
            async for chunk in chunks:
                yield chunk  # the consumer writes the chunk's events into `pipeline.events`
                await pipeline.transform()
            await pipeline.finish()
        except BaseException as error:
            await pipeline.fail(error)
            raise
        finally:
            writer.intercept = None


class _Pipeline:
    """The pipeline of events through the transformers."""

    def __init__(self, dispatcher: Any, writer: ProtocolWriter) -> None:
        self.events: list[dict[str, Any]] = []
        self._dispatcher = dispatcher
        self._writer = writer
        self._subscription = aiter(dispatcher._events)  # without one LangGraph discards the events
        self._produced = dispatcher._events._items

    async def transform(self) -> None:
        """Pass the collected events through the transformers and write the results."""
        events, self.events[:] = list(self.events), []
        for event in events:
            try:
                await self._dispatcher.apush(event)
            except Exception as error:  # any error of a transformer
                log.warning("a stream transformer failed: %s", text_of(error, repr), exc_info=error)
            self._write(event)

    async def finish(self) -> None:
        """Close the transformers and write the events that they add at the end."""
        try:
            await self._dispatcher.aclose()
        except Exception as error:
            log.warning("a stream transformer failed: %s", text_of(error, repr), exc_info=error)
        self._write(None)

    async def fail(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):
            await self._dispatcher.afail(error)
        self._write(None)

    def _write(self, pushed: dict[str, Any] | None) -> None:
        """Write the events that the transformers have produced after `pushed` was passed to them."""
        is_kept = False
        while self._produced:
            _, event = self._produced.popleft()
            if event is pushed:
                is_kept = True
                self._write_event(event)
            else:
                self._write_named(event)
        if pushed is not None and not is_kept and pushed["method"] in NEVER_LEFT_OUT:
            self._write_event(pushed)

    def _write_event(self, event: dict[str, Any]) -> None:
        params = event["params"]
        try:
            self._writer.write(
                event["method"], tuple(params["namespace"]), params["data"], params["timestamp"]
            )
        except Exception as error:  # a transformer may have changed the event in any way
            log.warning("a stream transformer's event cannot be written", exc_info=error)

    def _write_named(self, event: dict[str, Any]) -> None:
        """Write an event of a named channel. Skips channels named like our methods: they are for in-process readers."""
        method, params = event["method"], event["params"]
        if method not in MODES and method != "lifecycle":
            self._writer.write_named(method.removeprefix(CUSTOM), tuple(params["namespace"]), params["data"])


def _transformers(factories: Sequence[Callable[..., Any]]) -> Any:
    """Return LangGraph's dispatcher of the graph's transformers; None if they cannot be created."""
    try:
        from langgraph.stream._mux import StreamMux  # imported here: a module of newer versions of LangGraph

        return StreamMux(factories=list(factories), is_async=True)
    except Exception as error:
        log.warning(
            "the graph's stream transformers cannot be used, so protocol v2 shows no content of this run: %s",
            text_of(error, repr),
            exc_info=error,
        )
        return None


def _leave_out(event: dict[str, Any]) -> None:
    """Drop an event."""
