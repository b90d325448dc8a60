"""Transaction poolers in front of PostgreSQL: PgBouncer, and a minimal stand-in.

The stand-in forwards a client's messages to a free server connection and keeps that connection until the server reports
that no transaction is open. It takes the connection that was free longest, so that two transactions of a client rarely
share a session. It never resets a session.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue

from psycopg.conninfo import conninfo_to_dict

from tests.support.stack import free_port
from tests.support.waiting import wait_until

SERVERS = 3
PROTOCOL, ENCRYPTION = 196608, (80877103, 80877104)
READY, IDLE, TERMINATE = b"Z", b"I", b"X"
ASKS_FOR_READY = (b"Q", b"S")


class Wire:
    """One end of a connection, read and written in whole messages."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._stream = connected.makefile("rb")

    def read(self) -> tuple[bytes, bytes]:
        """Read a message. Returns its kind and all of its bytes."""
        head = self._exactly(5)
        (size,) = struct.unpack("!i", head[1:])
        return head[:1], head + self._exactly(size - 4)

    def read_startup(self) -> dict[str, str]:
        """Read the startup message of a client. Returns its parameters."""
        while True:
            size, code = struct.unpack("!ii", self._exactly(8))
            body = self._exactly(size - 8)
            if code == PROTOCOL:
                parts = [part.decode() for part in body.rstrip(b"\0").split(b"\0")]
                return dict(zip(parts[::2], parts[1::2], strict=True))
            if code not in ENCRYPTION:
                raise EOFError("a cancel")
            self.send(b"N")

    def _exactly(self, size: int) -> bytes:
        read = self._stream.read(size)
        if len(read) < size:
            raise EOFError("the other end is gone")
        return read

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class TransactionPooler:
    """A pooler on its own port: `with TransactionPooler(url) as pooler`."""

    def __init__(self, database_url: str, servers: int = SERVERS) -> None:
        self._servers = servers
        self._target = {name: str(value) for name, value in conninfo_to_dict(database_url).items()}
        self._free: Queue[Wire] = Queue()
        self._greeting = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = (
            f"postgresql://{self._target['user']}@127.0.0.1:{self._listener.getsockname()[1]}/"
            + (self._target["dbname"])
        )
        self.transactions = 0
        self._all: list[Wire] = []

    def __enter__(self) -> TransactionPooler:
        for _ in range(self._servers):
            self._free.put(self._connect())
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for wire in self._all:
            wire.close()

    def _connect(self) -> Wire:
        host, port = self._target["host"], self._target.get("port", "5432")
        if host.startswith("/"):
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(f"{host}/.s.PGSQL.{port}")
        else:
            connected = socket.create_connection((host, int(port)))
        server = Wire(connected)
        self._all.append(server)
        named = {"user": self._target["user"], "database": self._target["dbname"]}
        body = b"".join(part.encode() + b"\0" for pair in named.items() for part in pair) + b"\0"
        server.send(struct.pack("!ii", len(body) + 8, PROTOCOL) + body)
        greeting = b""
        kind = b""
        while kind != READY:
            kind, message = server.read()
            greeting += message
        self._greeting = greeting
        return server

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = Wire(connected)
            self._all.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: Wire) -> None:
        with suppress(EOFError, OSError):
            if "options" in client.read_startup():
                client.send(_refusal("unsupported startup parameter: options"))
            else:
                client.send(self._greeting)
                while self._transaction(client):
                    self.transactions += 1
        client.close()

    def _transaction(self, client: Wire) -> bool:
        """Forward one transaction. Returns whether the client is still connected."""
        kind, message = client.read()
        if kind == TERMINATE:
            return False
        server = self._free.get()
        try:
            while True:
                server.send(message)
                if kind in ASKS_FOR_READY and self._answer(client, server) == IDLE:
                    self._free.put(server)
                    return True
                kind, message = client.read()
                if kind == TERMINATE:
                    raise EOFError("a client that leaves in mid-transaction")
        except (EOFError, OSError):
            server.close()
            self._free.put(self._connect())
            return False

    def _answer(self, client: Wire, server: Wire) -> bytes:
        """Forward the server's answer up to ReadyForQuery. Returns the transaction status."""
        while True:
            kind, message = server.read()
            client.send(message)
            if kind == READY:
                return message[5:6]


def _refusal(text: str) -> bytes:
    body = b"SFATAL\0VFATAL\0C08P01\0M" + text.encode() + b"\0\0"
    return b"E" + struct.pack("!i", len(body) + 4) + body


PGBOUNCER = shutil.which("pgbouncer")
CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
logfile = {folder}/pgbouncer.log
pidfile =
"""


@contextmanager
def pgbouncer(database_url: str) -> Iterator[str]:
    """Run this machine's PgBouncer with its default settings for a database that listens on TCP. Yields its URL."""
    assert PGBOUNCER is not None
    target, listen = conninfo_to_dict(database_url), free_port()
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None  # PgBouncer refuses to run as root
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as folder:
        configuration = Path(folder) / "pgbouncer.ini"
        values = {name: target[name] for name in ("host", "port", "user")}
        configuration.write_text(CONFIGURATION.format(**values, listen=listen, folder=folder))
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        process = subprocess.Popen(
            [PGBOUNCER, "-q", str(configuration)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
        )
        try:
            wait_until(lambda: _listens(listen), what="PgBouncer to listen")
            yield f"postgresql://{target['user']}@127.0.0.1:{listen}/{target['dbname']}"
        finally:
            process.terminate()
            process.wait(timeout=30)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
