"""A service as `runyard backup` and `restore` see it: a database, encryption keys and a data folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import insert, text
from typer.testing import Result

import tests.support.factories as make
from shared import audit
from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.audit import Action, Actor
from shared.infra import encryption
from shared.infra.postgres import connection
from shared.models import ARCHIVE, ARCHIVE_CHUNK, SECRET
from shared.replays import cases
from tests.support.commands import invoke

KEY, OTHER = encryption.new_key(), encryption.new_key()
PASSPHRASE = "twelve or more characters"
BYTES = bytes(range(256)) * 9


class Service:
    def __init__(self, url: str, folder: Path, encryption_keys: str | None = KEY) -> None:
        self.url, self.folder, self.keys = url, folder, encryption_keys

    @property
    def environment(self) -> dict[str, str | None]:
        """Environment variables of the service. None removes a variable of this process."""
        return {
            **{name: None for name in os.environ if name.startswith("RUNYARD_")},
            "DATABASE_URL": self.url,
            "REDIS_URL": None,
            "RUNYARD_DATA_DIR": str(self.folder),
            "RUNYARD_ENCRYPTION_KEYS": self.keys,
        }

    def runyard(self, *arguments: str | Path, env: Mapping[str, str | None] | None = None) -> Result:
        return invoke(*map(str, arguments), env={**self.environment, **(env or {})})

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as conn:
            return conn.execute(query.encode()).fetchall()

    def tables(self) -> set[str]:
        found = self.rows(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
        )
        return {name for (name,) in found}


def text_of(result: Result) -> str:
    return result.stdout + result.stderr


def fill() -> None:
    """Insert runs in several states, and values whose restore could differ from plain text."""
    deployment = make.deployment("chat", organization_id=DEFAULT_ORGANIZATION_ID)
    thread = make.thread(deployment.id, metadata={"text": 'tab\t newline\n \\N \\. "COPY x FROM stdin;" é'})
    make.run(deployment, thread, status="success")
    make.run(deployment, webhook="https://example.com/hook")
    run = make.run(deployment, status="running", owner="gone", attempt=1)
    make.cron(deployment)
    make.webhook_delivery(deployment, run)
    make.question(deployment)
    make.bulk_operation(deployment)
    replay_id = make.replay(deployment)
    with connection() as conn:
        conn.execute(text("UPDATE run SET started_at = now() WHERE status = 'success'"))
        replay = cases.find(conn, replay_id)
        assert replay is not None
        cases.select(conn, replay)
        audit.add(conn, DEFAULT_ORGANIZATION_ID, Action.REPLAY_CREATED, "chat", by=Actor("aaaa", "ci"))
        conn.execute(insert(ARCHIVE).values(digest="d", size=len(BYTES)))
        conn.execute(insert(ARCHIVE_CHUNK).values(digest="d", n=0, data=BYTES))
        value = encryption.encrypt("s3cret")
        conn.execute(insert(SECRET).values(revision_id=deployment.active_revision_id, name="A", value=value))
        api_keys.create(conn, DEFAULT_ORGANIZATION_ID, name="ci", role="deploy")
        conn.execute(text("SELECT setval(pg_get_serial_sequence('log_line', 'id'), 41)"))


def everything(service: Service) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows by table, without the tables that running processes rewrite."""
    names = service.tables() - {"worker", "leader", "last_backup"}
    with psycopg.connect(service.url) as conn:
        return {
            name: sorted(conn.execute(f"SELECT CAST({name} AS text) FROM {name}".encode()).fetchall())
            for name in sorted(names)
        }
