"""An answer leaves in few packets: its head with the first chunk, what ends it with the last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from web.chunks import LastChunk
from web.worker import Response


class Socket:
    """Takes at most so many bytes a call, and remembers the calls."""

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


@pytest.fixture
def socket() -> Socket:
    return Socket()


def test_an_answer_of_known_length_is_one_packet(socket: Socket) -> None:
    answer = response(socket, ("Content-Length", "2"))
    answer.write(b"{}")
    answer.close()
    (packet,) = socket.packets
    head, _, body = packet.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b"{}"


def test_a_stream_is_a_packet_a_chunk(socket: Socket) -> None:
    stream = response(socket)
    stream.write(b"one")
    stream.write(b"two")
    stream.write(LastChunk(b"three"))
    stream.close()
    first, *rest = socket.packets
    assert first.endswith(b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
    assert rest == [b"3\r\ntwo\r\n", b"5\r\nthree\r\n0\r\n\r\n"]


def test_a_stream_that_does_not_know_its_last_chunk_is_ended(socket: Socket) -> None:
    stream = response(socket)
    stream.write(b"one")
    stream.close()
    assert socket.packets[1:] == [b"0\r\n\r\n"]


def test_one_chunk_may_be_the_whole_answer(socket: Socket) -> None:
    stream = response(socket)
    stream.write(LastChunk(b"all"))
    stream.close()
    (packet,) = socket.packets
    assert packet.endswith(b"\r\n\r\n3\r\nall\r\n0\r\n\r\n")


def test_an_empty_first_chunk_sends_the_head_at_once(socket: Socket) -> None:
    stream = response(socket)
    stream.write(b"")
    assert len(socket.packets) == 1
    stream.write(b"one")
    assert socket.packets[1:] == [b"3\r\none\r\n"]


def test_an_empty_last_chunk_ends_nothing_by_itself(socket: Socket) -> None:
    stream = response(socket)
    stream.write(b"one")
    stream.write(LastChunk(b""))
    stream.close()
    assert socket.packets[1:] == [b"0\r\n\r\n"]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_body_that_may_not_be_sent_leaves_the_head(socket: Socket, method: str) -> None:
    answer = response(socket, ("Content-Length", "0" if method == "GET" else "2"), method=method)
    answer.write(b"{}")
    answer.close()
    (packet,) = socket.packets
    assert packet.endswith(b"\r\n\r\n")


def test_an_answer_without_a_body_is_its_head(socket: Socket) -> None:
    answer = response(socket, ("Content-Length", "0"))
    answer.close()
    (packet,) = socket.packets
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
