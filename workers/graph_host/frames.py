"""The frames that a runner and a graph host exchange over one socket, for both sides.

A frame is a header (body length, kind, 16-byte id) and a body of bytes. The id is that of the run, query or request,
or zero if the frame belongs to none. A body is one JSON document, raw bytes, or *parts* (`pack`/`unpack`): a JSON
document followed by blobs, which the runner passes on without decoding them.

Down (runner → host)
    RUN         parts: spec JSON, input JSON, [the thread's newest stored root checkpoint, as ASK get_tuple
                answers: its record, data, blobs, writes]
    CANCEL      JSON {"action": "interrupt" | "rollback"}
    QUERY       JSON {"op": …} (`queries.py` has the ops); answered by ANSWER with the same id
    REPLY       parts: JSON {"ask": n}. To an ASK, followed by the answer of `shared.threads.checkpoint_reads.answer` or
                the result of store operations. To a CHECKPOINT or WRITES with ask n, followed by nothing: that frame
                and all earlier ones are stored
    PING        empty; answered by PONG
    WIDEN       JSON {"stream_mode": [mode …]}: also send events of these modes from now on, if the run has them
    STOP        empty: finish nothing, start nothing, exit 0
    OPEN        both ways: JSON head of a request, down for the project's app (`project/app.py`), up for the
                deployment's own API (`project/loopback.py`); parts follow under the same id
    PART        both ways: one byte that names its kind (below), and its data
    CHECK       JSON [run id in hex …]: which of these runs are in progress? Answered by CHECKED, using what a run
                needs: a document decoded, a thread, a document encoded

Up (host → runner)
    READY       JSON {"graphs": [graph_id …], "versions": {…}} or {"error": {"step", "message"}}; of a host that
                inspects: {"graphs": {graph_id: description …}, "versions", "user_code": {"auth": `auth.py`'s
                description | null, "app": `app_description.py`'s | null}}
    EVENT       event name, one line feed, JSON on one line
    CHECKPOINT  parts: JSON {"ask": n | 0, …}, blobs
    WRITES      parts: JSON {"ask": n | 0, …}, blobs
    ASK         parts: JSON {"ask": n, "op": …}, blobs
    DONE        parts: outcome JSON, values JSON, JSON for a caller that waits for the run; the last frame of a run
    ANSWER      parts: JSON, the answer to a QUERY; of an update also the values JSON and the blobs to store
    LOG         JSON {"level", "message", "logger"}; id of the run if known
    PONG        empty, or JSON {"queued": n, "starved": [run id in hex …], "damage": text | null}: the number of node
                calls that wait for a thread; the runs all of whose calls have waited long, which another host may
                continue; the reason why the process is unfit for more runs. Also sent without a PING when a run
                has damaged the process
    CHECKED     JSON [run id in hex …]
    NODE        JSON {"id", "name", "within": id of the node around it | null, "at": seconds since 1970, "ended": bool,
                "error": text | null}: a node begins or ends, in a run whose spec has `traced`
    CALL        JSON {"id", "operation": "chat" | "text_completion" | "execute_tool", "within": id of the call or node
                around it | null, "from", "until": seconds since 1970, …} of a model or tool call that has ended, in a
                run whose spec has `traced` (`workers/call_spans.py` has the other fields). At the end of a run that
                had too many calls {"dropped": n}
    USED        a number in ASCII, a space and JSON: the tokens that a run's model calls have reported so far, and their
                sums by model, sent after each call
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

HEADER = struct.Struct(">IB16s")
COUNT = struct.Struct(">I")
NOBODY = bytes(16)
MAX_BODY_BYTES = 64 * 1024 * 1024

RUN, CANCEL, QUERY, REPLY, PING, STOP, WIDEN, CHECK, OPEN, PART = range(1, 11)
READY, EVENT, CHECKPOINT, WRITES, ASK, DONE, ANSWER, LOG, PONG, CHECKED, NODE, USED, CALL = range(16, 29)

# Kinds of a PART. HEAD, FAILED and CLOSE are JSON, CREDIT is a number in ASCII, TEXT is UTF-8.
HEAD, BODY, END, TEXT, BYTES, CLOSE, CREDIT, FAILED = b"h", b"b", b"e", b"t", b"y", b"c", b"k", b"x"
KINDS = frozenset((*range(1, 11), *range(16, 29)))


class BadFrame(Exception):
    """The peer sent something that is not a frame."""


def encode(kind: int, id: bytes, body: bytes) -> bytes:
    """Return one frame as bytes."""
    return HEADER.pack(len(body), kind, id) + body


def pack(parts: Sequence[bytes]) -> bytes:
    """Return several blobs as one body."""
    out = [COUNT.pack(len(parts))]
    for part in parts:
        out.append(COUNT.pack(len(part)))
        out.append(part)
    return b"".join(out)


def unpack(body: bytes) -> list[bytes]:
    """Return the blobs of a body made by `pack`. Raises BadFrame."""
    try:
        (count,) = COUNT.unpack_from(body, 0)
        parts, at = [], COUNT.size
        for _ in range(count):
            (size,) = COUNT.unpack_from(body, at)
            at += COUNT.size
            if at + size > len(body):
                raise BadFrame("a part is longer than its frame")
            parts.append(body[at : at + size])
            at += size
    except struct.error as error:
        raise BadFrame("a frame's parts are cut off") from error
    return parts


class Decoder:
    """Decodes the bytes of a socket, which arrive in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield `(kind, id, body)` of every frame that is now complete. Raises BadFrame."""
        pending = self._pending
        pending += data
        at, end = 0, len(pending)
        # A view saves copying many pending bytes, but a copy of few is faster to read.
        view = bytes(pending) if end - at < 1 << 20 else memoryview(pending)
        try:
            while end - at >= HEADER.size:
                size, kind, id = HEADER.unpack_from(view, at)
                if size > MAX_BODY_BYTES or kind not in KINDS:
                    raise BadFrame(f"kind {kind} with {size} bytes")
                start = at + HEADER.size
                if end - start < size:
                    break
                at = start + size
                yield kind, id, bytes(view[start:at])
        finally:
            if isinstance(view, memoryview):
                view.release()
            del pending[:at]
