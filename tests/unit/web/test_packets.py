"""A response is sent in few packets: the head with the first chunk, the terminator with the last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from web.http.connections import LastChunk
from web.http.worker import Response


class Socket:
    """A socket that accepts at most `takes` bytes per call and records the calls."""

    def __init__(self, takes: int = 1 << 20) -> None:
        self.takes = takes
        self.packets: list[bytes] = []

    def send(self, data: Any) -> int:
        self.packets.append(bytes(data[: self.takes]))
        return min(len(data), self.takes)

    def sendall(self, data: Any) -> None:
        self.packets.append(bytes(data))


def response(socket: Socket, *headers: tuple[str, str], method: str = "GET") -> Any:
    request = SimpleNamespace(version=(1, 1), method=method, should_close=lambda: False)
    made = Response(request, socket, SimpleNamespace(sendfile=None, protocol="http"))
    made.start_response("200 OK", list(headers))
    return made


def packets(*chunks: bytes, length: int | None = None, method: str = "GET") -> list[bytes]:
    """Return the packets sent for a response with these chunks."""
    socket = Socket()
    headers = [] if length is None else [("Content-Length", str(length))]
    answer = response(socket, *headers, method=method)
    for chunk in chunks:
        answer.write(chunk)
    answer.close()
    return socket.packets


def test_an_answer_of_known_length_is_one_packet() -> None:
    (packet,) = packets(b"{}", length=2)
    head, _, body = packet.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b"{}"


def test_a_stream_is_a_packet_a_chunk() -> None:
    first, *rest = packets(b"one", b"two", LastChunk(b"three"))
    assert first.endswith(b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
    assert rest == [b"3\r\ntwo\r\n", b"5\r\nthree\r\n0\r\n\r\n"]
    (whole,) = packets(LastChunk(b"all"))
    assert whole.endswith(b"\r\n\r\n3\r\nall\r\n0\r\n\r\n")


def test_a_stream_that_does_not_know_its_last_chunk_is_ended() -> None:
    for chunks in ([b"one"], [b"one", LastChunk(b"")]):
        assert packets(*chunks)[1:] == [b"0\r\n\r\n"], chunks


def test_an_empty_first_chunk_sends_the_head_at_once() -> None:
    socket = Socket()
    stream = response(socket)
    stream.write(b"")
    assert len(socket.packets) == 1
    stream.write(b"one")
    assert socket.packets[1:] == [b"3\r\none\r\n"]


def test_an_answer_without_a_body_or_whose_body_may_not_be_sent_is_its_head() -> None:
    for answer in (packets(b"{}", length=2, method="HEAD"), packets(b"{}", length=0), packets(length=0)):
        (packet,) = answer
        assert packet.endswith(b"\r\n\r\n")


def test_what_the_socket_does_not_take_at_once_is_sent_too() -> None:
    whole, slow = Socket(), Socket(takes=7)
    for socket in (whole, slow):
        stream = response(socket)
        stream.write(b"one")
        stream.write(LastChunk(b"x" * 1_000))
        stream.close()
    assert b"".join(slow.packets) == b"".join(whole.packets)
    assert len(slow.packets) > len(whole.packets)
