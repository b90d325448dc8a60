"""Requests of graph hosts to their runner: lookups in the database, and HTTP requests to their own deployment.

Lookups (ASK frames) read checkpoints and store items, on behalf of a run or a call.

Loopback requests (OPEN frames) are requests of user code to its own deployment, sent over the host's socket. The runner
makes the HTTP request. It adds the address of the service, and a token that is valid for this deployment and for the
user on whose behalf the code runs. User code has neither. The rest of the request comes from the host and is checked
as untrusted input.
"""

from __future__ import annotations

import http.client
import logging
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

import gevent
import orjson
from gevent.lock import Semaphore
from gevent.queue import SimpleQueue

from shared import store
from shared.deployments.deployments import preview_address_name
from shared.errors import Fenced, HostDied, HostError, Refused, RunyardError, Unavailable
from shared.hosts.pending_calls import HostCall
from shared.infra.postgres import STATEMENT_ERRORS, connection, dumps
from shared.runs import claims
from shared.runs.claims import Claimed
from shared.settings import Settings
from shared.sql import statement
from shared.threads import checkpoint_reads
from shared.user_code import loopback
from workers.graph_host import frames
from workers.runner.host import Host

log = logging.getLogger(__name__)

_ADDRESS = statement("builds.address")

READS = ("get_tuple", "list", "ancestors")  # lookups that a call may make
AT_ONCE = 512  # concurrent requests of one host, including waits for nested runs; more are refused
MOST = 1024  # … including refused ones; a host that opens more does not read the refusals, and is killed
WINDOW = 16  # parts in flight without a credit, in each direction
PART_BYTES = 64 * 1024
CONNECT_SECONDS = 5.0
SILENT_SECONDS = 120.0  # read timeout; the service sends heartbeats while an answer takes time
METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
# Headers that a host must not set: those of a connection, and those that identify the caller or its address.
NOT_SENT = frozenset(
    (
        "host", "connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade",
        "proxy-connection", "proxy-authorization", "expect", "x-api-key", loopback.HEADER.lower(), "forwarded",
        "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via",
    )
)  # fmt: skip
NOT_ANSWERED = frozenset(("connection", "keep-alive", "transfer-encoding"))


def answer_run(run: Claimed, ask: Mapping[str, Any]) -> list[bytes]:
    """Execute a lookup of a run and return the encoded results.

    A replay reads the store of its revision's deployment, and writes nothing. Raises Fenced if the run writes to the
    store and has another owner by now. Raises Unavailable.
    """
    if ask["op"] == "store" and run.kwargs.get("replay"):
        if _writes(ask["ops"]):
            return [dumps({"error": "a replay may not write to the store"}).encode()]
        ops = [{**op, "refresh": False} if "refresh" in op else op for op in ask["ops"]]
        return _store_results(_deployment_of(run.revision_id)[0], ops, None)
    if ask["op"] == "store":
        return _store_results(run.deployment_id, ask["ops"], run)
    with connection() as conn:
        return checkpoint_reads.answer(conn, run.deployment_id, ask, thread_id=run.thread_id)


def answer_call(call: HostCall, ask: Mapping[str, Any]) -> list[bytes]:
    """Execute a lookup of a call, which may only read, and only if it is about a thread. Raises Unavailable."""
    if call.thread_id is None:
        return [dumps({"error": "a call without a thread may look up nothing"}).encode()]
    if ask["op"] == "store":
        if _writes(ask["ops"]):
            return [dumps({"error": "a call may not write to the store"}).encode()]
        return _store_results(call.deployment_id, ask["ops"], None)
    if ask["op"] not in READS:
        return [dumps({"error": f"a call may not {ask['op']}"}).encode()]
    with connection() as conn:
        return checkpoint_reads.answer(conn, call.deployment_id, ask, thread_id=call.thread_id)


def _store_results(deployment_id: UUID, ops: Sequence[Mapping[str, Any]], run: Claimed | None) -> list[bytes]:
    try:
        with connection() as conn:
            if run is not None and _writes(ops) and not claims.hold(conn, run):
                raise Fenced("its store operations are refused")
            return [orjson.dumps(store.answer(conn, deployment_id, ops))]
    except Refused as error:
        return [dumps({"error": error.message}).encode()]
    except STATEMENT_ERRORS as error:  # without an answer the graph would wait forever
        return [dumps({"error": f"the database refuses it: {getattr(error, 'orig', error)}"}).encode()]


def _writes(ops: Sequence[Mapping[str, Any]]) -> bool:
    return any(op["op"] == "put" for op in ops)


class Loopbacks:
    """The requests of this runner's hosts to their own deployments."""

    def __init__(self, settings: Settings) -> None:
        self._address = urlsplit(settings.internal_url)
        self._open: Counter[Host] = Counter()

    def begin(self, host: Host, id: bytes, head: Mapping[str, Any]) -> None:
        """Start a request that a host has opened. Must be called while its frame is read. Raises BadFrame."""
        if id in host.occupants:
            raise frames.BadFrame("a request with an id that is in use")
        if self._open[host] >= MOST:
            raise frames.BadFrame(f"{MOST} requests at once")
        request = _LoopbackRequest(host, id, head)
        host.admit(id, request)
        self._open[host] += 1
        refusal = None
        if host.group.is_replay:
            refusal = "a replay makes no requests to its deployment"
        elif self._open[host] > AT_ONCE:
            refusal = f"a process makes no more than {AT_ONCE} requests to its deployment at once"
        gevent.spawn(self._execute, request, refusal)

    def _execute(self, request: _LoopbackRequest, refusal: str | None) -> None:
        try:
            if refusal is not None:
                request.fail(refusal)
            else:
                request.execute(self._address)
        except HostDied:
            pass  # the code that waited for the answer has ended with its host
        finally:
            host = request.host
            host.leave(request.id)
            self._open[host] -= 1
            if not self._open[host]:
                del self._open[host]


class _Abandoned(Exception):
    """User code has abandoned the request, or its host has died."""


class _LoopbackRequest:
    """One loopback request: the occupant of its host."""

    def __init__(self, host: Host, id: bytes, head: Mapping[str, Any]) -> None:
        self.host = host
        self.id = id
        self._method, self._target = str(head["method"]), _target(head)
        self._headers = [(str(name), str(value)) for name, value in head["headers"]]
        self._user: Mapping[str, Any] | None = head.get("user")
        if self._method not in METHODS:
            raise frames.BadFrame(f"a request with the method {self._method!r}")
        self._body: SimpleQueue[bytes | None] = SimpleQueue()
        self._held = 0  # parts of the body that are not credited yet
        self._credits = Semaphore(WINDOW)
        self._is_abandoned = False
        self._connection: http.client.HTTPConnection | None = None

    def execute(self, address: Any) -> None:
        """Send the request to the service, and the response to the host."""
        try:
            self._connection = upstream = _connect(address)
            self._request(upstream, address.path.rstrip("/"))
            self._answer(upstream.getresponse())
        except (_Abandoned, HostDied):
            return
        except ValueError as error:  # raised by http.client
            self.fail(f"such a request cannot be made: {error}")
        except (OSError, http.client.HTTPException, RunyardError) as error:
            if not self._is_abandoned:
                log.warning("a request of revision %s to itself failed: %s", self.host.revision_id, error)
                self.fail("the service does not answer")
        finally:
            if self._connection is not None:
                self._connection.close()

    def fail(self, message: str) -> None:
        self._send(frames.FAILED, orjson.dumps({"message": message}))

    def _request(self, upstream: http.client.HTTPConnection, mount: str) -> None:
        deployment_id, name = _deployment_of(self.host.revision_id)
        upstream.putrequest(
            self._method, f"{mount}/d/{quote(name, safe='')}{self._target}", skip_accept_encoding=True
        )
        for header, value in self._headers:
            if header.lower() not in NOT_SENT:
                upstream.putheader(header, value)
        upstream.putheader(loopback.HEADER, loopback.make(deployment_id, self._user))
        first = self._next()
        if first is None:
            if self._method not in ("GET", "HEAD", "OPTIONS"):
                upstream.putheader("Content-Length", "0")
            upstream.endheaders()
            return
        upstream.putheader("Transfer-Encoding", "chunked")
        upstream.endheaders()
        try:
            self._send_chunks(upstream, first)
        except ConnectionError:
            log.debug("the service answers before it has all of a request")

    def _send_chunks(self, upstream: http.client.HTTPConnection, first: bytes) -> None:
        part: bytes | None = first
        while part is not None:
            if part:
                upstream.send(b"%x\r\n%b\r\n" % (len(part), part))
            part = self._next()
        upstream.send(b"0\r\n\r\n")

    def _next(self) -> bytes | None:
        """Wait for the next part of the body; None at its end. Raises _Abandoned."""
        part = self._body.get()
        if self._is_abandoned:
            raise _Abandoned
        if part is not None:
            self._held -= 1
            self._send(frames.CREDIT, b"1")
        return part

    def _answer(self, response: http.client.HTTPResponse) -> None:
        headers = [
            [name.lower(), value] for name, value in response.getheaders() if name.lower() not in NOT_ANSWERED
        ]
        self._send(frames.HEAD, orjson.dumps({"status": response.status, "headers": headers}))
        while data := response.read1(PART_BYTES):
            self._credits.acquire()
            if self._is_abandoned:
                raise _Abandoned
            self._send(frames.BODY, data)
        self._send(frames.END, b"")

    def _send(self, kind: bytes, data: bytes) -> None:
        self.host.send(frames.PART, self.id, kind + data)

    # as an occupant of the host

    def received(self, kind: int, body: bytes) -> None:
        if kind != frames.PART:
            return
        part, data = body[:1], body[1:]
        if part == frames.BODY:
            self._held += 1
            if self._held > WINDOW or len(data) > PART_BYTES:
                raise frames.BadFrame("more of a request than may be on its way")
            self._body.put(data)
        elif part == frames.END:
            self._body.put(None)
        elif part == frames.CREDIT:
            for _ in range(min(int(data), WINDOW)):
                self._credits.release()
        elif part in (frames.CLOSE, frames.FAILED):
            self._abandon()

    def _abandon(self) -> None:
        """Abandon the request: wake everything that waits for a part, a credit or the service."""
        self._is_abandoned = True
        self._body.put(None)
        self._credits.release()
        upstream = self._connection
        if upstream is not None and upstream.sock is not None:
            try:
                upstream.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # the connection is already closed

    def host_died(self, error: HostError) -> None:
        self._abandon()

    def wait_until_drained(self) -> None:
        """Return at once: a request has no events."""


def _target(head: Mapping[str, Any]) -> str:
    """Return the path and query to send to the service. Raises BadFrame."""
    path, query = str(head["path"]), str(head.get("query") or "")
    if not path.startswith("/") or any(part in (".", "..") for part in path.split("/")) or "?" in path:
        raise frames.BadFrame(f"a request for {path!r:.100}")
    return f"{path}?{query}" if query else path


def _connect(address: Any) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    upstream = kind(address.hostname, address.port, timeout=CONNECT_SECONDS)
    upstream.connect()
    upstream.sock.settimeout(SILENT_SECONDS)
    return upstream


def _deployment_of(revision_id: UUID) -> tuple[UUID, str]:
    """Return the id of a revision's deployment and the name in its address, which may be that of a preview.

    Raises Unavailable.
    """
    with connection() as conn:
        row = _ADDRESS.row(conn, id=revision_id)
    if row is None:
        raise Unavailable("the deployment is gone")
    name = row["name"] if row["preview"] is None else preview_address_name(row["name"], row["preview"])
    return row["id"], name
