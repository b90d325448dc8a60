"""The embedded servers: private, durable, and able to start again after any kind of end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from redis import AuthenticationError, Redis
from redis.exceptions import RedisError

from cli.machine import embedded
from tests.support.servers import running, valkey_url


def listening_on_tcp(pid: int) -> bool:
    """Return whether the process listens on a TCP socket."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor was closed meanwhile
            inodes.add(os.readlink(fd))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                return True
    return False


def test_postgresql_is_private_and_keeps_what_was_committed_when_it_is_killed(tmp_path: Path) -> None:
    """Given a cluster whose creation was cut short, the first start creates another."""
    half = tmp_path / "postgres.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    server = embedded.postgres(tmp_path)
    with running(server) as process:
        assert not listening_on_tcp(process.pid)
        assert (tmp_path / "postgres").stat().st_mode & 0o077 == 0
        with psycopg.connect(server.url, autocommit=True) as connection:
            settings = dict(connection.execute("SELECT name, setting FROM pg_settings").fetchall())
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (7)")
        process.kill()
        process.wait()
    assert settings["fsync"] == settings["synchronous_commit"] == settings["full_page_writes"] == "on"

    again = embedded.postgres(tmp_path)
    with running(again), psycopg.connect(again.url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


def test_valkey_keeps_what_it_was_sent_and_wants_its_password(tmp_path: Path) -> None:
    server = embedded.valkey(tmp_path)
    with running(server) as process:
        assert not listening_on_tcp(process.pid)
        Redis.from_url(server.url).set("kept", 7)
        with pytest.raises(AuthenticationError):
            Redis(unix_socket_path=str(tmp_path / "valkey" / "valkey.sock")).get("kept")
        assert Redis.from_url(server.url).config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert valkey_url(tmp_path) == server.url
    with running(embedded.valkey(tmp_path)):
        assert Redis.from_url(server.url).get("kept") == b"7"


def test_a_long_path_gets_a_short_private_socket_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.mkdir(parents=True)
    server = embedded.valkey(deep)
    with running(server):
        assert Redis.from_url(server.url).ping()
    with pytest.raises(RedisError):
        Redis.from_url(server.url).ping()
    assert valkey_url(deep) == server.url
    shutil.rmtree(embedded._socket_folder(deep / "valkey", "valkey.sock"))


def test_a_cluster_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "something").touch()
    with pytest.raises(embedded.CannotStart, match="something"):
        embedded.postgres(tmp_path)


def test_a_secret_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "one"
    assert embedded.secret_file(path, lambda: "first") == "first"
    assert embedded.secret_file(path, lambda: "second") == "first"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_stale_socket_is_not_ready(tmp_path: Path) -> None:
    server = embedded.valkey(tmp_path)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "valkey" / "valkey.sock"))
    assert not server.is_ready(os.getpid())
    with running(server) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not server.is_ready(process.pid)
