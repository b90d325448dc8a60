"""Rotation of every secret of the service as in docs/operating/secrets.md, with a period in which old and new are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from redis import AuthenticationError, Redis
from sqlalchemy import Engine

from cli.machine import embedded
from shared import migrations
from shared.access import api_keys
from shared.access.api_keys import BOOTSTRAP, DEFAULT_ORGANIZATION_ID
from shared.infra import encryption
from shared.infra.postgres import connection
from shared.user_code import loopback
from tests.support import factories
from tests.support.servers import postgres_over_tcp, running

OLD, NEW = encryption.new_key(), encryption.new_key()


def test_postgresql_s_password_is_that_of_one_of_two_logins(tmp_path: Path) -> None:
    def login(name: str) -> list[str]:
        return [
            f"CREATE ROLE {name} LOGIN PASSWORD '{name} word' IN ROLE runyard_owner",
            f"ALTER ROLE {name} SET role = runyard_owner",
        ]

    def change(*statements: str) -> None:
        with psycopg.connect(admin, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement.encode())

    with postgres_over_tcp(tmp_path, "admin") as admin:
        place = admin.partition("@")[2].replace("/postgres", "/runyard")
        change(
            "CREATE ROLE runyard_owner NOLOGIN", "CREATE DATABASE runyard OWNER runyard_owner", *login("one")
        )
        migrations.upgrade(f"postgresql://one:one%20word@{place}")
        with psycopg.connect(f"postgresql://one:one%20word@{place}") as old:
            change(*login("two"))
            with psycopg.connect(f"postgresql://two:two%20word@{place}", autocommit=True) as new:
                new.execute("INSERT INTO organization (id, name) VALUES (gen_random_uuid(), 'by two')")
                new.execute("ALTER TABLE organization ADD COLUMN of_a_migration int")
            assert old.execute("SELECT count(*) FROM organization WHERE name = 'by two'").fetchone() == (1,)
        change("DROP ROLE one")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"postgresql://one:one%20word@{place}")
        migrations.upgrade(f"postgresql://two:two%20word@{place}")


def test_redis_accepts_two_passwords_until_the_old_one_is_taken_away(tmp_path: Path) -> None:
    server = embedded.valkey(tmp_path)
    old = (tmp_path / "valkey" / "password").read_text().strip()
    with running(server):
        kept, changed = Redis.from_url(server.url), Redis.from_url(server.url.replace(old, "another"))
        kept.execute_command("ACL", "SETUSER", "default", ">another")
        assert changed.ping()
        assert Redis.from_url(server.url).ping()
        kept.execute_command("ACL", "SETUSER", "default", f"<{old}")
        assert kept.ping()  # open connections stay authenticated
        with pytest.raises(AuthenticationError):
            Redis.from_url(server.url).ping()


def test_an_operator_s_own_key_outlasts_the_one_of_the_settings(db: Engine) -> None:
    with connection() as conn:
        api_keys.ensure_default_organization(conn)
        key = api_keys.create(conn, DEFAULT_ORGANIZATION_ID, name="ops", role="operator")
    for bootstrap in ("the old one", "the new one"):
        found, known = (
            api_keys.authenticate(key, bootstrap=bootstrap),
            api_keys.authenticate(bootstrap, bootstrap=bootstrap),
        )
        assert found is not None
        assert known is not None
        assert (found.role, known.key_id) == ("operator", BOOTSTRAP)
    assert api_keys.authenticate("the old one", bootstrap="the new one") is None


def test_tokens_of_user_code_are_read_by_every_key_there_is(own_key: None, db: Engine) -> None:
    deployment_id = uuid4()
    encryption.configure([OLD, NEW])
    token = loopback.make(deployment_id, None)
    for known in ([NEW, OLD], [OLD]):
        encryption.configure(known)
        assert loopback.read(token) == loopback.LoopbackToken(deployment_id, None)
    encryption.configure([NEW])
    assert loopback.read(token) is None

    from shared.oauth import providers

    encryption.configure([OLD])
    organization_id = factories.organization()
    factories.oauth(organization_id, "acme")
    with connection() as conn:
        providers.change(conn, organization_id, "acme", {"client_secret": "the new one"})
        row: Any = providers.get_with_secret(conn, organization_id, "acme")
    assert encryption.decrypt(row["client_secret"]) == "the new one"
