"""Receivers of webhooks that behave badly: runs end as they ended, tries are made and given up, memory stays."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.conftest import OUTSIDE
from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
RUNS_EACH = 3
TRIES = 5
TRY_SECONDS = 90  # for one try at every receiver: those that keep it waiting are given ten seconds each
MOST_GROWTH_BYTES = 64 * 2**20

Behaviour = Callable[[socket.socket, threading.Event], None]


def fails(client: socket.socket, over: threading.Event) -> None:
    client.sendall(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")


def hangs(client: socket.socket, over: threading.Event) -> None:
    over.wait(60)


def resets(client: socket.socket, over: threading.Event) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def redirects(client: socket.socket, over: threading.Event) -> None:
    client.sendall(b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")


def answers_a_gigabyte(client: socket.socket, over: threading.Event) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    for _ in range(1024):
        client.sendall(bytes(2**20))


def has_headers_without_end(client: socket.socket, over: threading.Event) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.is_set():
        client.sendall(b"X-More: " + b"y" * 8000 + b"\r\n")


def drips(client: socket.socket, over: threading.Event) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not over.wait(0.2):
        client.sendall(b"x")


def speaks_something_else(client: socket.socket, over: threading.Event) -> None:
    client.sendall(b"220 mail.example ESMTP\r\n")


BEHAVIOURS = {
    fails: "the receiver answered 500",
    hangs: "did not answer within 10 s",
    resets: "did not answer with HTTP",
    redirects: "the receiver answered 301",
    answers_a_gigabyte: "answered with more than 1048576 bytes",
    has_headers_without_end: "did not answer with HTTP",
    drips: "did not answer within 10 s",
    speaks_something_else: "did not answer with HTTP",
}


@contextmanager
def receiver(behaviour: Behaviour) -> Iterator[str]:
    """A listener that reads a request's first bytes and then does as it likes; its address."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(65536)
            behaviour(client, over)

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
    finally:
        over.set()
        listener.close()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(env=OUTSIDE) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


def memory(stack: Stack) -> int:
    """What the processes take together that may call receivers."""
    return sum(
        psutil.Process(pid).memory_info().rss for name in ("runner", "builder") for pid in stack.pids(name)
    )


def test_receivers_that_behave_badly_change_no_run_and_are_given_up(stack: Stack) -> None:
    sdk = stack.sdk("kitchen")
    sdk.runs.wait(None, "echo", input={"text": "warm"})
    before = most = memory(stack)
    for behaviour, failure in BEHAVIOURS.items():
        with receiver(behaviour) as url, psycopg.connect(stack.database_url, autocommit=True) as conn:
            run_ids = []
            for _ in range(RUNS_EACH):
                run = sdk.runs.create(
                    sdk.threads.create()["thread_id"], "echo", input={"text": "x"}, webhook=url
                )
                run_ids.append(run["run_id"])

            def tried(attempt: int, run_ids: list[str] = run_ids, conn: psycopg.Connection = conn) -> bool:
                nonlocal most
                most = max(most, memory(stack))
                query = (
                    "SELECT count(*) FROM webhook_delivery"
                    " WHERE run_id = ANY(%s) AND attempt = %s AND owner IS NULL AND failure IS NOT NULL"
                )
                found = conn.execute(query, (run_ids, attempt)).fetchone()
                return found == (len(run_ids),)

            for attempt in range(1, TRIES + 1):
                wait_until(
                    lambda attempt=attempt: tried(attempt),
                    TRY_SECONDS,
                    what=f"{behaviour.__name__}: {attempt}",
                )
                due = "UPDATE webhook_delivery SET due_at = now() WHERE run_id = ANY(%s) AND ended_at IS NULL"
                conn.execute(due, (run_ids,))
            rows = conn.execute(
                "SELECT d.failure, d.ended_at IS NOT NULL, r.status FROM webhook_delivery d JOIN run r USING (run_id)"
                " WHERE run_id = ANY(%s)",
                (run_ids,),
            ).fetchall()
        assert len(rows) == len(run_ids)
        for told, is_over, status in rows:
            assert failure in told, behaviour.__name__
            assert (is_over, status) == (True, "success"), behaviour.__name__
    print(f"memory before {before // 2**20} MiB, at most {most // 2**20} MiB")
    assert most - before < MOST_GROWTH_BYTES
