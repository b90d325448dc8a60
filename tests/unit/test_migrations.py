"""The migrations make exactly what the models say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import NullPool, create_engine, make_url, text

from shared import migrations
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra.postgres import driver_url
from shared.models import Base

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty(database: str) -> Iterator[str]:
    """The address of a new, empty database beside the one of the other tests."""
    name = f"migrations_{uuid4().hex}"
    server = create_engine(driver_url(database), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    url = make_url(driver_url(database)).set(database=name, drivername="postgresql")
    yield url.render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def test_they_make_what_the_models_say(empty: str) -> None:
    migrations.upgrade(empty)
    with create_engine(driver_url(empty), poolclass=NullPool).connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "include_object": migrations.is_compared}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_a_database_is_current_once_they_have_run(empty: str) -> None:
    assert not migrations.is_current(empty)
    migrations.upgrade(empty)
    assert migrations.is_current(empty)


def test_running_them_again_changes_nothing(empty: str) -> None:
    migrations.upgrade(empty)
    migrations.upgrade(empty)
    with create_engine(driver_url(empty), poolclass=NullPool).connect() as connection:
        organizations = connection.execute(text("SELECT id FROM organization")).scalars().all()
    assert organizations == [DEFAULT_ORGANIZATION_ID]


def test_two_starters_migrate_one_after_the_other(empty: str) -> None:
    command = [sys.executable, "-m", "shared.migrations"]
    environment = {**os.environ, "DATABASE_URL": empty}
    started = [subprocess.Popen(command, cwd=ROOT, env=environment) for _ in range(2)]
    assert [process.wait(timeout=60) for process in started] == [0, 0]
    assert migrations.is_current(empty)


def test_the_command_says_what_it_lacks() -> None:
    command = [sys.executable, "-m", "shared.migrations"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DATABASE_URL")}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "DATABASE_URL must name the database" in ended.stderr
