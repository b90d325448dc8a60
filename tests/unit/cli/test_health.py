"""`runyard health`: the checks of each process, exit codes, and few imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from sqlalchemy import Engine, text

from cli.machine import health
from shared.infra import database_version
from shared.settings import Settings
from tests.support.commands import invoke

ROOT = Path(__file__).parents[3]
HEAVY = ("typer", "rich", "celery", "sqlalchemy", "httpx", "flask", "gevent", "redis")


class Web(BaseHTTPRequestHandler):
    statuses: ClassVar = {"/ok": 200, "/ok?ready=1": 503}

    def do_GET(self) -> None:
        self.send_response(self.statuses[self.path])
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Web) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_web_is_asked_at_its_port(port: int, host: str) -> None:
    settings = Settings(listen_host=host, port=port)

    assert health.check(settings, "web", is_ready=False) == "web answers /ok"
    with pytest.raises(health.Unhealthy, match=r"web answers /ok\?ready=1 with 503"):
        health.check(settings, "web", is_ready=True)
    with pytest.raises(health.Unhealthy, match=r"does not answer at 127\.0\.0\.1:1"):
        health.check(Settings(port=1), "web", is_ready=False)


def test_a_database_is_one_with_the_tables_of_this_release(db: Engine, database: str) -> None:
    settings = Settings(database_url=database)
    for version, is_enough in (("0023", False), ("9999", True), (database_version.needed(), True)):
        with db.begin() as conn:
            conn.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
            assert database_version.is_current(conn) == is_enough
        if not is_enough:
            with pytest.raises(health.Unhealthy, match=r"made before the first release\. Use an empty"):
                health.check(settings, "database", is_ready=False)
    assert "has the tables" in health.check(settings, "database", is_ready=False)
    with db.begin() as conn:
        conn.execute(text("DELETE FROM alembic_version"))
        assert not database_version.is_current(conn)
    with pytest.raises(health.Unhealthy, match="run its migrations"):
        health.check(settings, "database", is_ready=False)
    with db.begin() as conn:
        conn.execute(
            text("INSERT INTO alembic_version VALUES (:version)"), {"version": database_version.needed()}
        )


def test_a_database_that_is_away_is_said_without_its_password() -> None:
    with pytest.raises(health.Unhealthy, match="does not answer") as caught:
        health.check(
            Settings(database_url="postgresql://me:secret@127.0.0.1:1/x"), "database", is_ready=False
        )
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "There is no process 'nothing'"),
        (["web", "--pid", "7"], "Only runner, builder and beat"),
        (["runner", "--wait", "-1"], "greater than or equal"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(arguments: list[str], said: str) -> None:
    assert health.quick(arguments) is None

    answer = invoke("health", *arguments)

    assert answer.exit_code == 2
    assert said in answer.output


def test_a_probe_imports_little(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['runyard', 'health', 'runner', '--ready']\nimport cli.__main__ as it\n"
        "try: it.main()\nexcept SystemExit as end: code = end.code\n"
        f"print(code, [name for name in {HEAVY} if name in sys.modules])"
    )
    env = {**os.environ, "RUNYARD_RUNTIME_DIR": str(tmp_path)}

    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True)

    assert done.stdout == "1 []\n"
    assert done.stderr == f"No runner answers in {tmp_path}.\n"


def test_it_waits_as_long_as_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([health.Unhealthy("not yet"), "well"])

    def check(*_: object, **__: object) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(health, "check", check)
    monkeypatch.setattr(health, "RETRY_SECONDS", 0)
    assert health.report("database", is_ready=False, pid=None, wait_seconds=60) == 0
    assert capsys.readouterr().out == "well\n"
