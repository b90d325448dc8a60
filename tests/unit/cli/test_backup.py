"""`runyard backup` and `restore` between two databases: what comes back, and what is refused before anything changes."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import insert
from typer.testing import CliRunner, Result

import tests.support.factories as make
from cli.backups import archive, contents, database, keys
from cli.backups.keys import fingerprint
from cli.main import app
from shared import migrations
from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra import encryption, postgres
from shared.infra.postgres import connection
from shared.models import ARCHIVE, ARCHIVE_CHUNK, SECRET
from tests.support.databases import fresh

KEY, OTHER = encryption.new_key(), encryption.new_key()
PASSPHRASE = "twelve or more characters"
BYTES = bytes(range(256)) * 9


class Service:
    """A service as the command line sees it: its database, its keys, its folder."""

    def __init__(self, url: str, folder: Path, encryption_keys: str | None = KEY) -> None:
        self.url, self.folder, self.keys = url, folder, encryption_keys

    def runyard(self, *arguments: str | Path, env: dict[str, str | None] | None = None) -> Result:
        environment = {
            **{name: None for name in os.environ if name.startswith("RUNYARD_")},
            "DATABASE_URL": self.url,
            "REDIS_URL": None,
            "RUNYARD_DATA_DIR": str(self.folder),
            "RUNYARD_ENCRYPTION_KEYS": self.keys,
            **(env or {}),
        }
        return CliRunner().invoke(app, [str(part) for part in arguments], env=environment)

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


@pytest.fixture(scope="module")
def pristine(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with one of each, and a backup of it: made once, since migrations take their time."""
    before = encryption._cipher, encryption._first
    folder = tmp_path_factory.mktemp("pristine")
    with fresh(database) as url:
        migrations.upgrade(url)
        postgres.connect(url)
        encryption.configure([KEY])
        fill()
        postgres.engine().dispose()
        service = Service(url, folder)
        (folder / "phrase").write_text(PASSPHRASE)
        made = service.runyard("backup", folder / "one.backup", "--passphrase-file", folder / "phrase")
        assert made.exit_code == 0, text_of(made)
        yield service
    encryption._cipher, encryption._first = before


@pytest.fixture
def source(database: str, pristine: Service, tmp_path: Path) -> Iterator[Service]:
    """The same, to be changed."""
    with fresh(database, template=pristine.url) as url:
        yield Service(url, tmp_path / "source")


def fill() -> None:
    """Runs in each state, and whatever else restores differently from plain text."""
    deployment = make.deployment("chat", organization_id=DEFAULT_ORGANIZATION_ID)
    thread = make.thread(deployment.id, metadata={"text": 'tab\t newline\n \\N \\. "COPY x FROM stdin;" é'})
    make.run(deployment, thread, status="success")
    make.run(deployment, webhook="https://example.com/hook")
    run = make.run(deployment, status="running", owner="gone", attempt=1)
    make.cron(deployment)
    make.webhook_delivery(deployment, run)
    with connection() as conn:
        conn.execute(insert(ARCHIVE).values(digest="d", size=len(BYTES)))
        conn.execute(insert(ARCHIVE_CHUNK).values(digest="d", n=0, data=BYTES))
        value = encryption.encrypt("s3cret")
        conn.execute(insert(SECRET).values(revision_id=deployment.active_revision_id, name="A", value=value))
        api_keys.create(conn, DEFAULT_ORGANIZATION_ID, name="ci", role="deploy")


@pytest.fixture
def target(database: str, tmp_path: Path) -> Iterator[Service]:
    """A service with an empty database, and nothing prepared in it."""
    with fresh(database) as url:
        yield Service(url, tmp_path / "target")


@pytest.fixture
def made(pristine: Service, tmp_path: Path) -> Path:
    """A backup of the source, its keys sealed in it with the phrase beside it."""
    (tmp_path / "phrase").write_text(PASSPHRASE)
    return Path(shutil.copy(pristine.folder / "one.backup", tmp_path))


def everything(service: Service) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables but of those that processes write anew."""
    names = service.tables() - {"worker", "leader", "last_backup"}
    return {name: sorted(service.rows(f"SELECT CAST({name} AS text) FROM {name}")) for name in sorted(names)}


def test_everything_comes_back(source: Service, target: Service, made: Path) -> None:
    restored = target.runyard("restore", made)

    assert restored.exit_code == 0, text_of(restored)
    assert "1 deployment" in restored.stdout
    assert everything(target) == everything(source)
    assert target.rows("SELECT data FROM archive_chunk") == [(BYTES,)]
    assert migrations.is_current(target.url)


def test_a_backup_is_its_owner_s_alone_and_takes_nobody_s_place(source: Service, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    path = tmp_path / "one.backup"
    assert source.runyard("backup", path).exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert set(tmp_path.iterdir()) - before == {path}

    refused = source.runyard("backup", path)
    assert (refused.exit_code, "--force" in refused.stderr) == (1, True)
    assert source.runyard("backup", path, "--force").exit_code == 0

    folder = tmp_path / "folder"
    folder.mkdir()
    shown = json.loads(source.runyard("backup", folder, "--json").stdout)
    assert [Path(shown["path"])] == list(folder.iterdir())
    assert (shown["counts"]["run"], shown["live_runs"], shown["encrypted"], shown["unreadable"]) == (
        3,
        2,
        1,
        0,
    )
    assert shown["keys"] == [fingerprint(KEY)]
    size = Path(shown["path"]).stat().st_size
    assert source.rows("SELECT bytes, now() - made_at < interval '1 hour' FROM last_backup") == [(size, True)]


def test_secrets_and_keys_are_in_no_backup_in_the_clear(source: Service, made: Path) -> None:
    plain = made.with_name("plain.backup")
    said = source.runyard("backup", plain)
    assert fingerprint(KEY) in said.stdout
    for path in (made, plain):
        assert KEY.encode() not in path.read_bytes()
    assert archive.read(plain).manifest["sealed_keys"] is None
    assert keys.unseal(archive.read(made).manifest["sealed_keys"], PASSPHRASE) == (KEY,)


def test_sealed_keys_go_into_the_data_directory(target: Service, made: Path, tmp_path: Path) -> None:
    target.keys = None
    target.folder.mkdir()
    (target.folder / "secret.key").write_text(OTHER)
    wrong = tmp_path / "wrong"
    wrong.write_text("not at all the same phrase")

    assert "encrypted values cannot be read" in target.runyard("restore", made).stderr
    refused = target.runyard("restore", made, "--passphrase-file", wrong)
    assert "does not open the keys" in refused.stderr
    assert target.tables() == set()
    restored = target.runyard("restore", made, "--passphrase-file", tmp_path / "phrase")

    assert restored.exit_code == 0, text_of(restored)
    assert (target.folder / "secret.key").read_text().strip() == f"{OTHER},{KEY}"
    listed = json.loads(target.runyard("encryption", "list", "--json").stdout)
    assert listed == [fingerprint(OTHER), fingerprint(KEY)]


def test_a_check_reads_all_of_it(source: Service, made: Path) -> None:
    checked = source.runyard("backup", "--check", made)
    assert checked.exit_code == 0, text_of(checked)
    assert "1 of 1 encrypted values" in checked.stdout
    source.keys = OTHER
    refused = source.runyard("backup", "--check", made)
    assert (refused.exit_code, fingerprint(KEY) in refused.stderr) == (1, True)


def damaged(made: Path, kind: str) -> Path:
    data = bytearray(made.read_bytes())
    if kind == "short":
        del data[-2000:]
    elif kind == "shorter":
        del data[4000:]
    elif kind == "changed":
        data[5000] ^= 1
    elif kind == "foreign":
        with BytesIO() as file, tarfile.open(fileobj=file, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("letter.txt"))
            data = bytearray(file.getvalue())
    elif kind == "empty":
        data.clear()
    path = made.with_name(kind)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("short", "not whole"),
        ("shorter", "not whole"),
        ("changed", "is damaged"),
        ("foreign", "no backup"),
        ("empty", "no backup"),
    ],
)
def test_what_is_no_whole_backup_is_refused(target: Service, made: Path, kind: str, said: str) -> None:
    path = damaged(made, kind)
    for arguments in (["restore", path], ["backup", "--check", path]):
        refused = target.runyard(*arguments)
        assert (refused.exit_code, said in refused.stderr) == (1, True), text_of(refused)
    assert target.tables() == set()


def with_manifest(made: Path, **changes: Any) -> Path:
    """The same backup, saying something else of itself."""
    backup, path = archive.read(made), made.with_name("other.backup")
    with archive.writing(path, made.with_name("part"), replace=True) as writer, backup.dump() as dump:
        writer.add_dump(BytesIO(dump.read(backup.size)))
        writer.add_manifest({**backup.manifest, **changes})
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"migration": "9999"}, "upgrade it first"),
        ({"format": 2}, "upgrade first"),
        ({"counts": {"deployment": 2}}, "the backup says it holds 2 deployments"),
        ({"schema": "other"}, "schema 'other'"),
    ],
)
def test_a_backup_that_cannot_be_whole_here_changes_nothing(
    target: Service, made: Path, changes: dict[str, Any], said: str
) -> None:
    refused = target.runyard("restore", with_manifest(made, **changes))
    assert (refused.exit_code, said in refused.stderr) == (1, True), text_of(refused)
    assert target.tables() == set()


def test_what_breaks_in_the_middle_leaves_the_target_as_it_was(
    target: Service, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrations.upgrade(target.url)
    before = everything(target)

    def breaks(*_: object) -> dict[str, int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(contents, "counts", breaks)
    assert target.runyard("restore", made).exit_code == 130
    assert everything(target) == before
    monkeypatch.undo()
    assert target.runyard("restore", made).exit_code == 0


def test_a_backup_that_breaks_off_leaves_no_file(
    source: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(tmp_path.iterdir())
    (tmp_path / "pg_dump").write_text("#!/bin/sh\nprintf PGDMP; echo 'no space' >&2; exit 1\n")
    (tmp_path / "pg_dump").chmod(0o700)
    monkeypatch.setattr(database, "program", lambda name, conn: str(tmp_path / name))
    failed = source.runyard("backup", tmp_path / "one.backup")
    assert (failed.exit_code, "no space" in failed.stderr) == (1, True)
    assert set(tmp_path.iterdir()) - before == {tmp_path / "pg_dump"}


def test_a_database_that_is_in_use_is_not_touched(source: Service, target: Service, made: Path) -> None:
    with psycopg.connect(source.url, application_name="runyard web"):
        running = source.runyard("restore", made, "--replace", "--yes")
    assert "stop it on every machine" in running.stderr
    refused = source.runyard("restore", made)
    assert (refused.exit_code, "1 deployments" in refused.stderr) == (1, True), text_of(refused)
    nobody = source.runyard("restore", made, "--replace")
    assert "Nobody can be asked" in nobody.stderr
    with psycopg.connect(target.url) as conn:
        conn.execute("CREATE TABLE theirs (n int)")
    assert "not runyard's: theirs" in target.runyard("restore", made, "--replace", "--yes").stderr


def test_replace_puts_the_backup_in_the_place_of_what_there_is(source: Service, made: Path) -> None:
    before = everything(source)
    source.rows("INSERT INTO organization (id, name) VALUES (gen_random_uuid(), 'later') RETURNING 1")
    assert everything(source) != before
    replaced = source.runyard("restore", made, "--replace", "--yes")
    assert replaced.exit_code == 0, text_of(replaced)
    assert everything(source) == before


def test_a_paused_copy_begins_nothing(target: Service, made: Path) -> None:
    restored = target.runyard("restore", made, "--paused", "--json")
    assert restored.exit_code == 0, text_of(restored)
    assert json.loads(restored.stdout)["ended_runs"] == 2
    assert target.rows("SELECT enabled FROM cron") == [(False,)]
    assert target.rows("SELECT count(*) FROM webhook_delivery WHERE ended_at IS NULL") == [(0,)]
    ended = target.rows("SELECT status, cancel_requested FROM run ORDER BY status")
    # upkeep ends the one that says it runs when its lease has run out
    assert ended == [("interrupted", "interrupt"), ("running", "interrupt"), ("success", None)]


def test_an_older_backup_is_brought_to_this_version(database: str, target: Service, tmp_path: Path) -> None:
    from alembic import command
    from sqlalchemy import NullPool, create_engine

    with fresh(database) as url:
        engine = create_engine(postgres.driver_url(url), poolclass=NullPool)
        with engine.connect() as conn:
            command.upgrade(migrations.config(conn), "0014")
            conn.commit()
        older = tmp_path / "older.backup"
        made = Service(url, tmp_path / "older").runyard("backup", older)
        assert made.exit_code == 0, text_of(made)
    restored = target.runyard("restore", older)
    assert restored.exit_code == 0, text_of(restored)
    assert migrations.is_current(target.url)


def test_embedded_servers_are_started_for_it(made: Path, tmp_path: Path) -> None:
    service = Service("", tmp_path / "data")
    own = {"DATABASE_URL": None}
    restored = service.runyard("restore", made, env=own)
    assert restored.exit_code == 0, text_of(restored)
    again = service.runyard("backup", tmp_path / "again.backup", "--json", env=own)
    assert again.exit_code == 0, text_of(again)
    assert json.loads(again.stdout)["counts"] == archive.read(made).manifest["counts"]
    assert not (tmp_path / "data" / "postgres" / "postmaster.pid").exists()


def test_without_a_database_it_says_what_to_set(tmp_path: Path) -> None:
    said = Service("", tmp_path / "none").runyard("backup", tmp_path, env={"DATABASE_URL": None})
    assert (said.exit_code, "RUNYARD_DATA_DIR" in said.stderr) == (1, True)
    assert not (tmp_path / "none").exists()


def test_a_password_is_nowhere_in_a_program_s_arguments() -> None:
    place, environment = database.place("postgresql://me:pass%20word@db.example:5433/runyard?sslmode=require")
    assert "pass" not in place
    assert environment["PGPASSWORD"] == "pass word"
    assert {"host=db.example", "port=5433", "user=me", "dbname=runyard", "sslmode=require"} == set(
        place.split()
    )
    assert not {name for name in environment if name in ("DATABASE_URL", "RUNYARD_API_KEY")}
