"""Fixtures for real servers: the embedded PostgreSQL and Valkey start once per session and are empty for each test."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from ssl import SSLContext
from typing import Any

import httpx
import hypothesis
import pytest
from fakeredis import FakeRedis
from redis import Redis
from sqlalchemy import Engine, text

from cli.machine import embedded
from shared import sql
from shared.infra import database_version, egress, encryption
from shared.infra import postgres as shared_postgres
from shared.infra import redis as shared_redis
from shared.models import METADATA
from shared.settings import Settings
from tests.support import javascript, module_times, shared_stack
from tests.support.servers import postgres, running
from tests.support.shared_stack import SharedStack
from tests.support.stack import Stack

# Deletes rows only from tables that have some, because TRUNCATE creates new files for every table. Triggers are off
# because all referring rows are deleted too. Large tables are truncated because scans would still read deleted rows.
# One static query finds the tables: PostgreSQL plans it once, and a query for each table would be planned each time.
FILLED = " UNION ALL ".join(
    f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in sorted(METADATA.tables)
)
EMPTY_TABLES = f"""
CREATE FUNCTION empty_tables() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOREACH name IN ARRAY ARRAY({FILLED}
        UNION ALL SELECT 'store_vector' WHERE to_regclass('store_vector') IS NOT NULL) LOOP
        IF pg_relation_size(name::regclass) > 1000000 THEN
            EXECUTE format('TRUNCATE %s CASCADE', name);
        ELSE
            EXECUTE format('DELETE FROM %s', name);
        END IF;
    END LOOP;
END $$
"""
# Tests run servers on loopback ports that stand for servers outside the platform.
OUTSIDE = {"RUNYARD_ALLOWED_ADDRESSES": "127.0.0.1", "RUNYARD_ALLOW_HTTP": "true"}

KITCHEN = Path(__file__).parent / "projects" / "kitchen"
AGENCY = KITCHEN.with_name("agency")
CONFORMANCE = KITCHEN.with_name("conformance")
TASK_OPTIONS: dict[str, dict[str, Any]] = {
    "slow_compute": {"task_after": 0},
    "confirm_delete": {"task_after": 0},
    "multi_input": {"task_after": 0},
    "failing_job": {"task_required": True},
    "test_tool_with_task": {"task_after": 0.3},
}
CHATROOM = KITCHEN.with_name("chatroom")
TWINS = KITCHEN.with_name("twins")

# No deadline for examples: a busy machine slows them down.
hypothesis.settings.register_profile("runyard", deadline=None)
hypothesis.settings.load_profile("runyard")


@cache
def _read_certificates(verify: Any, trust_env: bool, *environment: str | None) -> SSLContext:
    return httpx.create_ssl_context(verify=verify, trust_env=trust_env)


def _certificates(verify: Any = True, cert: Any = None, trust_env: bool = True) -> SSLContext:
    """Return the trusted certificates, which are read once: each new client of httpx would otherwise take 25 ms."""
    assert cert is None
    return _read_certificates(verify, trust_env, *map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))


httpx._transports.default.create_ssl_context = _certificates


def pytest_configure(config: pytest.Config) -> None:
    """Prepare what all workers share: the platform, and a folder instead of the contexts of the user's command line."""
    gc.disable()  # until all tests are collected: their modules are never freed, and each collection would scan them
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="runyard-config-")
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_CONFIG_HOME"] = folder.name
        shared_stack.prepare()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the release ring, and start with the longest modules."""
    for item in items:
        if item.nodeid.startswith("tests/release/"):
            item.add_marker(pytest.mark.release)
    module_times.longest_first(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    module_times.count(report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the shared platform after all workers are done. A leftover process fails the run."""
    if hasattr(session.config, "workerinput"):
        return
    module_times.write()
    if left := shared_stack.stop():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nFAILED the platform left processes behind: {', '.join(left)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last log lines of its platforms to a failed test."""
    report = yield
    if report.failed:
        stacks = [value for value in item.funcargs.values() if isinstance(value, Stack)]
        report.sections += [("platform", stack.tail()) for stack in stacks]
    return report


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a PostgreSQL that lives as long as the session."""
    server = postgres(tmp_path_factory.mktemp("pg"))
    # The data is discarded, so the server skips fsync and stops without a checkpoint.
    command = [*server.command, "-c", "fsync=off", "-c", "full_page_writes=off"]
    with running(replace(server, command=command, stop_signal=signal.SIGQUIT)):
        yield server.url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Valkey that lives as long as the session."""
    server = embedded.valkey(tmp_path_factory.mktemp("vk"))
    with running(server):
        yield server.url
    # Hub connections live until the process ends, which may wait for other workers. Silence their errors meanwhile.
    for name in ("loops", "redis_connections"):
        logging.getLogger(f"shared.infra.{name}").disabled = True


@pytest.fixture(scope="session")
def _engines(database: str) -> tuple[Engine, Engine | None]:
    """Database engines of this process, connected to a database with all tables."""
    engine = shared_postgres.connect(database)
    METADATA.create_all(engine)
    with engine.begin() as connection:
        sql.install(connection)
        connection.execute(text("CREATE TABLE alembic_version (version_num text)"))
        connection.execute(
            text("INSERT INTO alembic_version VALUES (:version)"), {"version": database_version.needed()}
        )
        connection.execute(text(EMPTY_TABLES))
    return engine, shared_postgres._quick


@pytest.fixture
def db(_engines: tuple[Engine, Engine | None]) -> Engine:
    """Database engine of this process, with empty tables."""
    engine = _engines[0]
    if shared_postgres._engine is not engine:  # a test has connected to another database
        for other in filter(None, (shared_postgres._engine, shared_postgres._quick)):
            other.dispose()
        shared_postgres._engine, shared_postgres._quick = _engines
    with engine.begin() as connection:
        connection.execute(text("SELECT empty_tables()"))
    return engine


@pytest.fixture(scope="session")
def _redis(redis_url: str) -> Iterator[Redis]:
    """Redis client for the session. Creating a client takes longer than most tests use it."""
    client = shared_redis.connect(redis_url)
    yield client
    client.close()


@pytest.fixture
def redis(_redis: Redis) -> Redis:
    """Client of an empty Valkey, which is also the process's default client."""
    shared_redis.use(_redis)
    _redis.flushall()
    return _redis


@pytest.fixture
def fake_redis() -> FakeRedis:
    """Empty in-memory Redis with script support, which is also the process's default client."""
    client = FakeRedis(version=(7,))
    shared_redis.use(client)
    return client


@pytest.fixture
def own_key() -> Iterator[None]:
    """Encrypt with a new key during the test."""
    before = encryption._cipher, encryption._first
    encryption.configure([encryption.new_key()])
    yield
    encryption._cipher, encryption._first = before


@pytest.fixture
def lenient() -> Iterator[None]:
    """Allow outgoing requests to this machine, also over plain HTTP."""
    egress.configure(["127.0.0.1"], allow_http=True)
    yield
    egress.configure()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings for tests to modify with `dataclasses.replace`."""
    return Settings.from_env({"RUNYARD_DATA_DIR": str(tmp_path / "data")})


@pytest.fixture(scope="session")
def stack() -> SharedStack:
    """The whole platform, shared by all workers. A test that would break it belongs in `tests/fault`."""
    return shared_stack.shared(OUTSIDE)


@pytest.fixture(scope="session")
def kitchen(stack: SharedStack) -> str:
    """Name of a deployment with one graph for each behaviour."""
    return stack.deploy_once(KITCHEN, "kitchen")


@pytest.fixture(scope="session")
def agency(stack: SharedStack) -> str:
    """Name of a deployment whose graphs are agents and tools for other clients."""
    return stack.deploy_once(AGENCY, "agency")


@pytest.fixture(scope="session")
def conformance(stack: SharedStack) -> str:
    """Name of a deployment with the tools that the conformance kit of MCP asks for."""
    name = stack.deploy_once(CONFORMANCE, "conformance")
    assistants = stack.sdk(name).assistants
    for graph_id, options in TASK_OPTIONS.items():
        (assistant,) = assistants.search(graph_id=graph_id)
        assistants.update(assistant["assistant_id"], metadata={"mcp": options})
    return name


@pytest.fixture(scope="session")
def chatroom(stack: SharedStack) -> str:
    """Name of a deployment with graphs to chat with."""
    return stack.deploy_once(CHATROOM, "chatroom")


@pytest.fixture(scope="session")
def twins(stack: SharedStack, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a deployment with graphs of `kitchen` and `chatroom` in TypeScript."""
    folder = tmp_path_factory.mktemp("projects") / TWINS.name
    for source in (TWINS, javascript.JS / "graphs"):
        shutil.copytree(source, folder, dirs_exist_ok=True)
    return stack.deploy_once(folder, TWINS.name)
