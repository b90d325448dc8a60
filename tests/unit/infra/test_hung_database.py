"""A hung PostgreSQL server, which keeps and accepts connections but answers none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import replication

# A gevent-patched process that can stop and continue the server. Each program prints one line of JSON.
BEGINNING = """
from gevent import monkey
monkey.patch_all()
import json, logging, os, signal, sys, types
import gevent
import psutil
from shared.errors import Unavailable
from shared.infra import postgres

attempts = []

class Attempts(logging.Handler):
    def emit(self, record):
        if record.msg.startswith("connection attempt"):
            attempts.append(record)

logging.getLogger("psycopg").addHandler(Attempts())
logging.getLogger("psycopg").setLevel(logging.DEBUG)
logging.getLogger("psycopg").propagate = False
postgres.TRUSTED_SECONDS = 0.0  # every pooled connection is checked
now = 0.0  # seconds: callers of a busy machine fail later than HUNG_SECONDS after the first
postgres.time = types.SimpleNamespace(monotonic=lambda: now)

def send(number):
    process = psutil.Process(int(sys.argv[1]))
    for each in (process, *process.children()):
        each.send_signal(number)

def by_driver(statement="SELECT 1 AS x"):
    with postgres.driver() as conn:
        return postgres.query(conn, statement, {}).fetchone()["x"]

def by_connection():
    with postgres.connection() as conn:
        return conn.exec_driver_sql("SELECT 1").scalar_one()

def outcome(call):
    try:
        return call()
    except Unavailable as error:
        return str(error)

def outcomes(calls):
    return sorted({each.value for each in gevent.joinall([gevent.spawn(outcome, call) for call in calls])}, key=str)
"""
HUNG = """
postgres.connect(os.environ["DATABASE_URL"], pool_size=4, silence_seconds=0.5)

def under_way():
    with postgres.driver() as conn:
        stopped.wait()
        return postgres.query(conn, "SELECT 1 AS x", {}).fetchone()["x"]

stopped = gevent.event.Event()
said = {"before": outcomes([by_driver, by_connection] * 10)}
early = gevent.spawn(outcomes, [under_way] * 2)
gevent.idle()
send(signal.SIGSTOP)
stopped.set()
attempts.clear()
said["under way"] = early.get()
said["hung"] = outcomes([by_driver, by_connection] * 50)
said["attempts"] = len(attempts)
send(signal.SIGCONT)
now += postgres.HUNG_SECONDS
with gevent.Timeout(30):
    while outcomes([by_driver, by_connection]) != [1]:
        gevent.sleep(0.1)
said["after"] = outcomes([by_driver, by_connection] * 10)
print(json.dumps(said))
"""
SLOW = """
postgres.connect(os.environ["DATABASE_URL"], silence_seconds=0.5)

def slow():
    return by_driver("SELECT 2 AS x FROM pg_sleep(1.5)")

def patient():
    with postgres.patience(30):
        return slow()

def spoken():  # sends rows all the time, and takes longer than the silence may
    with postgres.driver() as conn:
        rows = conn.cursor().stream("SELECT repeat('x', 10000), pg_sleep(0.1) FROM generate_series(1, 15)")
        return len(list(rows))

print(json.dumps({"slow": outcomes([slow]), "patient": outcomes([patient]), "spoken": outcomes([spoken])}))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A dedicated PostgreSQL server. Yields its URL and process id."""
    folder: Path = tmp_path_factory.mktemp("hung")
    with replication.primary(folder) as url:
        (file,) = folder.rglob("postmaster.pid")
        yield url, int(file.read_text().split()[0])


def output(program: str, url: str, *arguments: str) -> str:
    """Return the output of a program that connects to the database."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env={**os.environ, "DATABASE_URL": url}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def said(server: tuple[str, int], program: str) -> Any:
    url, pid = server
    return json.loads(output(BEGINNING + program, url, str(pid)))


def test_statements_and_new_connections_fail_while_the_server_hangs(server: tuple[str, int]) -> None:
    found = said(server, HUNG)

    assert found.pop("attempts") <= 2 * 4 * 2, "not every caller waits for a connection of its own"
    assert found == {
        "before": [1],
        "under way": ["The database is unavailable."],
        "hung": ["The database is unavailable."],
        "after": [1],
    }


def test_a_statement_that_is_slow_by_nature_has_a_longer_limit(server: tuple[str, int]) -> None:
    assert said(server, SLOW) == {"slow": ["The database is unavailable."], "patient": [2], "spoken": [15]}


# Waiting for the database in a patched process does not block other greenlets


BESIDE_EACH_OTHER = """
from gevent import monkey
monkey.patch_all()
import json, os, sys
import gevent
import psycopg
from shared.infra import greenlet_wait, postgres

postgres.connect(os.environ["DATABASE_URL"])
assert psycopg.waiting.wait is greenlet_wait.wait
said = []

def ask(statement, name, **values):
    with postgres.driver() as conn:
        said.append([name, postgres.query(conn, statement, values).fetchone()["x"]])

def fail():
    with postgres.driver() as conn:
        try:
            postgres.query(conn, "SELECT 1 / %(zero)s AS x", {"zero": 0})
        except psycopg.errors.DivisionByZero:
            said.append(["fails", 0])

def give_up():
    try:
        with gevent.Timeout(0.2), postgres.driver() as conn:
            postgres.query(conn, "SELECT pg_sleep(600)", {})
    except gevent.Timeout:
        said.append(["gives up", 0])

large = "x" * 30_000_000  # more than the socket takes at once, there and back
gevent.joinall([
    gevent.spawn(ask, "SELECT 1 AS x FROM pg_sleep(1.5)", "waits"),
    gevent.spawn(ask, "SELECT length(%(large)s || repeat('y', 30000000)) AS x", "large", large=large),
    gevent.spawn(ask, "SELECT 2 AS x", "quick"),
    gevent.spawn(fail),
    gevent.spawn(give_up),
], raise_error=True)
ask("SELECT 3 AS x", "after")
print(json.dumps(said))
"""


def test_greenlets_wait_for_the_database_beside_each_other(database: str) -> None:
    said = json.loads(output(BESIDE_EACH_OTHER, database))
    assert sorted(map(tuple, said)) == [
        ("after", 3), ("fails", 0), ("gives up", 0), ("large", 60_000_000), ("quick", 2), ("waits", 1),
    ]  # fmt: skip
    names = [name for name, _ in said]
    assert names.index("quick") < names.index("waits")
    assert names[-1] == "after"


def test_a_process_whose_statements_would_stop_it_is_refused(database: str) -> None:
    program = """
import psycopg
from gevent import monkey
monkey.patch_all()
import os
from shared.infra import postgres
try:
    postgres.connect(os.environ["DATABASE_URL"])
except RuntimeError as error:
    print(error)
"""
    assert output(program, database) == "psycopg was imported before gevent patched this process\n"
