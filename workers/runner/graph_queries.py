"""Queries of graphs and threads, from notification to answer. A query is an occupant of a graph host, like a run.

The host reads checkpoints through the runner. The answer to an update of a thread's state contains the data to store,
and the runner stores it in one transaction with the thread's row.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import gevent
import orjson
from gevent.event import AsyncResult

from shared import graph_queries
from shared.deployments.warming import IS_READY
from shared.errors import Conflict, HostDied, HostError, NotFound, RunyardError, Unavailable
from shared.graph_queries import PATIENCE_SECONDS, Question
from shared.infra.postgres import connection, dumps
from shared.threads import checkpoint_reads, state
from workers.graph_host import frames
from workers.runner import store_operations
from workers.runner.host import Host
from workers.runner.host_pool import HostPool

log = logging.getLogger(__name__)

READS = ("get_tuple", "list", "ancestors")
TRIES = 3  # of an update whose thread changes before it is stored


def answer_all(hosts: HostPool, ids: Sequence[UUID]) -> None:
    """Answer the queries among these that no other runner has taken. Returns when they are answered."""
    gevent.joinall([gevent.spawn(_answer, hosts, id) for id in ids])


def _answer(hosts: HostPool, id: UUID) -> None:
    try:
        question = graph_queries.take(id)
    except Unavailable as error:
        log.warning("query %s: cannot be taken now: %s", id, error)
        return
    if question is None:
        return
    try:
        document = _Query(hosts, id, question).answer()
    except Exception:  # outermost loop: a bug of the runner, and the caller still needs an answer
        log.exception("query %s failed", id)
        document = graph_queries.refusal("failed", "internal error")
    graph_queries.answer(id, document)


class _Query:
    """One query in a graph host."""

    def __init__(self, hosts: HostPool, id: UUID, question: Question) -> None:
        self._hosts = hosts
        self._id = id
        self._question = question
        self._host: Host | None = None
        self._parts: AsyncResult = AsyncResult()

    def answer(self) -> bytes:
        """Return the answer for the calling process: a JSON document, or a refusal if an error occurs."""
        try:
            if self._question.document["op"] == IS_READY:
                self._hosts.acquire(self._question.revision_id)
                return b"{}"
            if self._question.document["op"] == "update":
                return self._update()
            return self._ask()[0]
        except HostError as error:
            return graph_queries.refusal("failed", f"the graph host {error.message}")
        except gevent.Timeout:
            return graph_queries.refusal("failed", "the graph host did not answer in time")
        except Unavailable as error:
            return graph_queries.refusal("unavailable", error.message)
        except (Conflict, NotFound) as error:
            return graph_queries.refusal("conflict", error.message)
        except RunyardError as error:
            return graph_queries.refusal("failed", error.message)

    def _ask(self) -> list[bytes]:
        self._parts = AsyncResult()
        self._host = host = self._hosts.acquire(self._question.revision_id)
        try:
            host.enter(self._id.bytes, self, dumps(self._question.document).encode(), kind=frames.QUERY)
            return cast("list[bytes]", self._parts.get(timeout=PATIENCE_SECONDS))
        finally:
            host.leave(self._id.bytes)

    def _update(self) -> bytes:
        """Have the host compute an update, and store its result. Repeats both if the thread has changed meanwhile."""
        question = self._question
        assert question.thread_id is not None  # web asks for updates of threads only
        for tries_left in reversed(range(TRIES)):
            document, *parts = self._ask()
            answer = orjson.loads(document)
            if "refused" in answer:
                return document
            try:
                with connection() as conn:
                    state.store_update(
                        conn,
                        question.deployment_id,
                        question.thread_id,
                        self._id,
                        answer,
                        parts[0],
                        parts[1:],
                        from_newest=not question.document.get("checkpoint"),
                    )
            except state.StaleUpdate:
                if not tries_left:
                    raise
                continue
            return orjson.dumps({"checkpoint": answer["checkpoint"]})
        raise AssertionError("the last try returns or raises")

    # as an occupant of the host

    def received(self, kind: int, body: bytes) -> None:
        if kind == frames.ANSWER:
            self._parts.set(frames.unpack(body))
        elif kind == frames.ASK:
            # An error in this greenlet ends the query. Otherwise the host would wait for its reply.
            gevent.spawn(self._reply, frames.unpack(body)).link_exception(self._parts)

    def _reply(self, parts: list[bytes]) -> None:
        ask: dict[str, Any] = orjson.loads(parts[0])
        try:
            found = self._read(ask)
        except Unavailable as error:
            self._parts.set_exception(error)
            return
        head = dumps({"ask": ask["ask"]}).encode()
        if self._host is not None and self._host.died is None:
            try:
                self._host.send(frames.REPLY, self._id.bytes, frames.pack([head, *found]))
            except HostDied:
                return  # `host_died` answers the query

    def _read(self, ask: dict[str, Any]) -> list[bytes]:
        """Answer an ASK of the host. Refuses operations that write, since a query only reads."""
        if ask["op"] == "store":
            return store_operations.answer_question(self._question.deployment_id, ask)
        if ask["op"] not in READS:
            return [dumps({"error": f"a question may not {ask['op']}"}).encode()]
        question = self._question
        with connection() as conn:
            return checkpoint_reads.answer(conn, question.deployment_id, ask, thread_id=question.thread_id)

    def host_died(self, error: HostError) -> None:
        self._parts.set_exception(error)

    def wait_until_drained(self) -> None:
        """Return at once: a query has no events."""
