"""Statements of a process that gevent has patched: whoever waits for an answer lets the others go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
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
    env = {**os.environ, "DATABASE_URL": database}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
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
    env = {**os.environ, "DATABASE_URL": database}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "psycopg was imported before gevent patched this process\n", done.stderr
