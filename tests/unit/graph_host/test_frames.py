"""Frames survive any cut of the stream; what is no frame is refused."""

from __future__ import annotations

import pytest

from workers.graph_host import frames
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


def test_frames_before_a_bad_one_are_delivered() -> None:
    stream = Decoder().feed(STREAM + b"\xff" * 30)

    assert [next(stream) for _ in SENT] == SENT
    with pytest.raises(BadFrame):
        next(stream)


@pytest.mark.parametrize("parts", [[], [b""], [b"{}", b"", b"\x00" * 70_000]])
def test_parts_come_back_as_they_went_in(parts: list[bytes]) -> None:
    assert frames.unpack(frames.pack(parts)) == parts


@pytest.mark.parametrize("cut", [1, 3, 5, 9])
def test_parts_that_are_cut_off_are_refused(cut: int) -> None:
    with pytest.raises(BadFrame):
        frames.unpack(frames.pack([b"some", b"parts"])[:-cut])


def test_parts_that_promise_more_than_there_is_are_refused() -> None:
    with pytest.raises(BadFrame):
        frames.unpack(frames.COUNT.pack(2**32 - 1))
