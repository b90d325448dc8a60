"""Frames are parsed however the stream is split, and malformed ones are refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from math import inf

import pytest

from workers.graph_host import connection, frames
from workers.graph_host.connection import Connection
from workers.graph_host.frames import BadFrame, Decoder

ID = bytes(range(16))
SENT = [
    (frames.RUN, ID, frames.pack([b"{}", b"null"])),
    (frames.PING, frames.NOBODY, b""),
    (frames.EVENT, ID, b'values\n{"a":1}' * 100),
]
STREAM = b"".join(frames.encode(*frame) for frame in SENT)


@pytest.mark.parametrize("piece", [1, 3, 20, 21, 22, 1000, len(STREAM)])
def test_frames_come_out_whole_however_the_bytes_arrive(piece: int) -> None:
    decoder = Decoder()

    received = []
    for start in range(0, len(STREAM), piece):
        received += decoder.feed(STREAM[start : start + piece])

    assert received == SENT


def test_a_large_frame_comes_out_whole() -> None:
    frame = (frames.CHECKPOINT, ID, b"x" * 3_000_000)
    decoder = Decoder()

    received = []
    data = frames.encode(*frame) + STREAM
    for start in range(0, len(data), 250_000):
        received += decoder.feed(data[start : start + 250_000])

    assert received == [frame, *SENT]

    stream = Decoder().feed(STREAM + b"\xff" * 30)

    assert [next(stream) for _ in SENT] == SENT
    with pytest.raises(BadFrame):
        next(stream)


@pytest.mark.parametrize(
    "header",
    [
        frames.HEADER.pack(frames.MAX_BODY_BYTES + 1, frames.EVENT, ID),
        frames.HEADER.pack(0, 99, ID),
        frames.HEADER.pack(0, 0, ID),
    ],
)
def test_what_is_no_frame_is_refused(header: bytes) -> None:
    with pytest.raises(BadFrame):
        list(Decoder().feed(header))


@pytest.mark.parametrize("parts", [[], [b""], [b"{}", b"", b"\x00" * 70_000]])
def test_parts_come_back_as_they_went_in(parts: list[bytes]) -> None:
    assert frames.unpack(frames.pack(parts)) == parts


def test_parts_that_are_cut_off_or_promise_more_than_there_is_are_refused() -> None:
    whole = frames.pack([b"some", b"parts"])
    for parts in (whole[:-1], whole[:-3], whole[:-5], whole[:-9], frames.COUNT.pack(2**32 - 1)):
        with pytest.raises(BadFrame):
            pytest.fail(f"{parts!r} is accepted as {frames.unpack(parts)}")


# The host's end of the socket to its runner


def test_an_error_of_one_frame_does_not_lose_the_next() -> None:
    handled: list[int] = []
    errors: list[object] = []

    def handle(kind: int, id: bytes, body: bytes) -> None:
        handled.append(kind)
        raise ValueError(f"kind {kind}")

    async def receive() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
        runner, host = socket.socketpair()
        with runner, host:
            Connection(host, loop, handle)
            first, second = (frames.encode(kind, frames.NOBODY, b"") for kind in (frames.RUN, frames.PING))
            runner.sendall(first + second)
            while len(handled) < 2:
                await asyncio.sleep(0)
            loop.remove_reader(host)

    asyncio.run(asyncio.wait_for(receive(), 60))

    assert handled == [frames.RUN, frames.PING]
    assert errors == [f"kind {kind}" for kind in handled]


@pytest.mark.parametrize(
    ("late_seconds", "sent"), [(0.0, ["1", "1", "123", "123"]), (inf, ["", "", "", "123"])]
)
def test_a_long_turn_of_the_loop_sends_the_frames_so_far(
    monkeypatch: pytest.MonkeyPatch, late_seconds: float, sent: list[str]
) -> None:
    monkeypatch.setattr(connection, "LATE_SECONDS", late_seconds)
    monkeypatch.setattr(connection, "BATCH_SECONDS", 0.0)
    received: list[bytes] = []
    seen: list[str] = []

    async def send() -> None:
        loop, decoder = asyncio.get_running_loop(), Decoder()
        runner, host = socket.socketpair()
        with runner, host:
            runner.setblocking(False)
            ours = Connection(host, loop, lambda kind, id, body: None)

            def receive() -> None:
                with contextlib.suppress(BlockingIOError):
                    received.extend(body for _, _, body in decoder.feed(runner.recv(1 << 16)))
                seen.append(b"".join(received).decode())

            event = partial(ours.send, frames.EVENT, frames.NOBODY)
            event(b"1")
            for step in (ours.flush_late, partial(event, b"2"), partial(event, b"3")):
                step()
                receive()
            await asyncio.sleep(0)  # the turn ends
            receive()
            loop.remove_reader(host)

    asyncio.run(asyncio.wait_for(send(), 60))
    assert seen == sent
