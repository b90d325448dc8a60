"""`runyard backup` and `restore` between two databases: which data is restored, and which backups are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url

from cli.backups import archive, contents, keys, restoring
from cli.backups.database import Connection
from cli.backups.keys import fingerprint
from shared.infra import database_version
from tests.support import next_release
from tests.support.backups import BYTES, KEY, OTHER, PASSPHRASE, Service, everything, text_of


def test_a_backup_is_its_owner_s_alone_and_takes_nobody_s_place(pristine: Service, tmp_path: Path) -> None:
    """A backup is readable by its owner only, and does not replace an existing file without --force."""
    before = set(tmp_path.iterdir())
    path = tmp_path / "one.backup"
    assert pristine.runyard("backup", path).exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert set(tmp_path.iterdir()) - before == {path}

    refused = pristine.runyard("backup", path)
    assert (refused.exit_code, "--force" in refused.stderr) == (1, True)
    assert pristine.runyard("backup", path, "--force").exit_code == 0

    folder = tmp_path / "folder"
    folder.mkdir()
    shown = json.loads(pristine.runyard("backup", folder, "--json").stdout)
    assert [Path(shown["path"])] == list(folder.iterdir())
    assert (shown["counts"]["run"], shown["live_runs"], shown["encrypted"], shown["unreadable"]) == (
        3,
        2,
        1,
        0,
    )
    assert shown["keys"] == [fingerprint(KEY)]
    size = Path(shown["path"]).stat().st_size
    assert pristine.rows("SELECT bytes, now() - made_at < interval '1 hour' FROM last_backup") == [
        (size, True)
    ]


def test_a_backup_overwrites_no_other_file(pristine: Service, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / ".one.backup.part").symlink_to(other)
    os.mkfifo(tmp_path / ".two.backup.part")
    os.mkfifo(tmp_path / "fifo")
    for name in ("one.backup", "two.backup", "fifo"):
        refused = pristine.runyard("backup", tmp_path / name, "--force")
        assert refused.exit_code == 1, text_of(refused)
        assert refused.stderr.startswith(f"Error: {tmp_path / name} ")
    assert other.read_text() == "precious"
    assert (tmp_path / "fifo").is_fifo()


def test_secrets_and_keys_are_in_no_backup_in_the_clear(pristine: Service, made: Path) -> None:
    plain = made.with_name("plain.backup")
    said = pristine.runyard("backup", plain)
    assert fingerprint(KEY) in said.stdout
    for path in (made, plain):
        assert KEY.encode() not in path.read_bytes()
    assert archive.read(plain).sealed_keys is None
    sealed = archive.read(made).sealed_keys
    assert sealed is not None
    assert keys.unseal(sealed, PASSPHRASE) == (KEY,)


def test_everything_comes_back_and_sealed_keys_go_into_the_data_directory(
    pristine: Service, target: Service, made: Path, tmp_path: Path
) -> None:
    target.keys = None
    target.folder.mkdir()
    (target.folder / "secret.key").write_text(OTHER)
    wrong = tmp_path / "wrong"
    wrong.write_text("not at all the same phrase")

    assert f"signed with the encryption key {fingerprint(KEY)}" in target.runyard("restore", made).stderr
    refused = target.runyard("restore", made, "--passphrase-file", wrong)
    assert "does not open the keys" in refused.stderr
    assert target.tables() == set()
    restored = target.runyard("restore", made, "--passphrase-file", tmp_path / "phrase")

    assert restored.exit_code == 0, text_of(restored)
    assert "2 deployments" in restored.stdout  # with the bench of a replay
    assert everything(target) == everything(pristine)
    assert target.rows("SELECT data FROM archive_chunk") == [(BYTES,)]
    assert target.rows("SELECT nextval(pg_get_serial_sequence('log_line', 'id'))") == [(42,)]
    assert database_version.applied(target.url) == database_version.needed()
    assert (target.folder / "secret.key").read_text().strip() == f"{OTHER},{KEY}"
    listed = json.loads(target.runyard("encryption", "list", "--json").stdout)
    assert listed == [fingerprint(OTHER), fingerprint(KEY)]


def test_a_restore_that_fails_keeps_no_keys(target: Service, made: Path, tmp_path: Path) -> None:
    target.keys = None
    target.folder.mkdir()
    (target.folder / "secret.key").write_text(OTHER)
    with psycopg.connect(target.url) as conn:
        conn.execute("CREATE TYPE run AS ENUM ('a')")  # keeps the migrations from creating the table `run`
    failed = target.runyard("restore", made, "--passphrase-file", tmp_path / "phrase")
    assert (failed.exit_code, "Nothing was restored" in failed.stderr) == (1, True), text_of(failed)
    assert (target.folder / "secret.key").read_text() == OTHER


def test_a_check_reads_all_of_it(made: Path, tmp_path: Path) -> None:
    service = Service("", tmp_path / "data")
    checked = service.runyard("backup", "--check", made)
    assert checked.exit_code == 0, text_of(checked)
    assert "1 of 1 encrypted values" in checked.stdout
    service.keys = OTHER
    refused = service.runyard("backup", "--check", made)
    assert (refused.exit_code, fingerprint(KEY) in refused.stderr) == (1, True)


def test_what_breaks_in_the_middle_leaves_the_target_as_it_was(
    prepared: Service, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt just before the commit rolls the restore back."""
    before = everything(prepared)

    def interrupt(*_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(restoring, "empty_redis", interrupt)  # the last step before the commit
    assert prepared.runyard("restore", made).exit_code == 130
    assert everything(prepared) == before


def test_a_backup_that_breaks_off_leaves_no_file(source: Service, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    role = f"reader_{uuid4().hex}"
    with psycopg.connect(source.url) as conn:
        conn.execute(f"CREATE ROLE {role} LOGIN".encode())
        conn.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}".encode())
        conn.execute("ALTER TABLE thread ENABLE ROW LEVEL SECURITY")  # hides rows from the role
    url = make_url(source.url).set(username=role).render_as_string(hide_password=False)
    try:
        failed = Service(url, source.folder).runyard("backup", tmp_path / "one.backup")
    finally:
        with psycopg.connect(source.url) as conn:
            conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    assert (failed.exit_code, "row-level security" in failed.stderr) == (1, True), text_of(failed)
    assert set(tmp_path.iterdir()) == before


def test_a_backup_holds_all_or_is_refused(source: Service, tmp_path: Path) -> None:
    with psycopg.connect(source.url) as conn:
        conn.execute("ALTER TABLE thread ADD COLUMN theirs text")
    refused = source.runyard("backup", tmp_path / "one.backup")
    assert "column 'theirs' of the table 'thread'" in refused.stderr
    with psycopg.connect(source.url) as conn:
        conn.execute("ALTER TABLE thread DROP COLUMN theirs")
        conn.execute("DROP TABLE log_line")
    refused = source.runyard("backup", tmp_path / "one.backup")
    assert (refused.exit_code, "no table 'log_line'" in refused.stderr) == (1, True), text_of(refused)
    source.rows("UPDATE alembic_version SET version_num = '9999' RETURNING 1")
    refused = source.runyard("backup", tmp_path / "one.backup")
    assert "The database has version 9999" in refused.stderr
    assert not (tmp_path / "one.backup").exists()


def set_search_path(service: Service, path: str) -> None:
    with psycopg.connect(service.url) as conn:
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET search_path = {path}".encode())


def test_a_backup_follows_the_search_path(source: Service, made: Path, tmp_path: Path) -> None:
    """Given a search_path with another schema first, the backup still contains the rows of the service's tables."""
    with psycopg.connect(source.url) as conn:
        conn.execute("CREATE SCHEMA other")
    set_search_path(source, "other, public")
    shown = source.runyard("backup", tmp_path / "path.backup", "--json")
    assert shown.exit_code == 0, text_of(shown)
    assert json.loads(shown.stdout)["counts"] == contents.counts(archive.read(made).manifest["tables"])
    assert "The database is not empty" in source.runyard("restore", made).stderr


def test_a_schema_may_have_any_name(target: Service, made: Path, tmp_path: Path) -> None:
    with psycopg.connect(target.url) as conn:
        conn.execute('CREATE SCHEMA "Own Schema"')
    set_search_path(target, '"Own Schema", public')
    restored = target.runyard("restore", made)
    assert restored.exit_code == 0, text_of(restored)
    assert target.rows('SELECT count(*) FROM "Own Schema".run') == [(3,)]
    assert target.runyard("backup", tmp_path / "again.backup").exit_code == 0
    tables = archive.read(tmp_path / "again.backup").manifest["tables"]
    assert {table.name: table.rows for table in tables}["run"] == 3
    assert "The database is not empty" in target.runyard("restore", made).stderr


def test_what_a_backup_may_hold_is_what_the_database_has(pristine: Service) -> None:
    """KNOWN lists exactly the tables and columns of a migrated database."""
    with psycopg.connect(pristine.url) as conn:
        columns = contents.columns(conn)
    assert {table: sorted(names) for table, names in columns.items()} == {
        table: sorted(names) for table, names in contents.KNOWN.items()
    }


def test_a_database_that_is_in_use_is_not_touched(source: Service, target: Service, made: Path) -> None:
    with psycopg.connect(source.url, application_name="runyard web"):
        running = source.runyard("restore", made, "--replace", "--yes")
    assert "stop it on every machine" in running.stderr
    refused = source.runyard("restore", made)
    assert (refused.exit_code, "2 deployments" in refused.stderr) == (1, True), text_of(refused)
    nobody = source.runyard("restore", made, "--replace")
    assert "Nobody can be asked" in nobody.stderr
    with psycopg.connect(target.url) as conn:
        conn.execute("CREATE TABLE theirs (n int)")
    assert "not runyard's: theirs" in target.runyard("restore", made, "--replace", "--yes").stderr


def test_replace_drops_what_is_the_service_s_and_no_object_of_somebody_else(
    source: Service, made: Path
) -> None:
    of_backup = everything(source)
    with psycopg.connect(source.url) as conn:
        conn.execute("INSERT INTO organization (id, name) VALUES (gen_random_uuid(), 'later')")
        conn.execute("CREATE FUNCTION theirs() RETURNS int LANGUAGE sql AS 'SELECT 7'")
        conn.execute("CREATE SCHEMA theirs CREATE VIEW runs AS SELECT run_id FROM public.run")
    before = everything(source)
    refused = source.runyard("restore", made, "--replace", "--yes")
    assert (refused.exit_code, "view theirs.runs depends on table run" in refused.stderr) == (1, True)
    assert everything(source) == before
    with psycopg.connect(source.url) as conn:
        conn.execute("DROP VIEW theirs.runs")
    replaced = source.runyard("restore", made, "--replace", "--yes")
    assert replaced.exit_code == 0, text_of(replaced)
    assert source.rows("SELECT theirs()") == [(7,)]
    assert everything(source) == of_backup


def test_rows_written_after_the_first_look_are_not_dropped(
    prepared: Service, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given rows that are inserted after the first check, the check within the transaction refuses the restore."""

    def look_and_write(conn: Connection) -> restoring.TargetDatabase:
        monkeypatch.undo()
        result = restoring.inspect_target(conn)
        conn.execute("INSERT INTO organization (id, name) VALUES (gen_random_uuid(), 'later')")
        return result

    monkeypatch.setattr(restoring, "inspect_target", look_and_write)
    refused = prepared.runyard("restore", made)
    assert (refused.exit_code, "is not empty" in refused.stderr) == (1, True), text_of(refused)
    assert prepared.rows("SELECT count(*) FROM organization WHERE name = 'later'") == [(1,)]


def test_a_paused_copy_begins_nothing(prepared: Service, made: Path) -> None:
    restored = prepared.runyard("restore", made, "--paused", "--json")
    assert restored.exit_code == 0, text_of(restored)
    assert json.loads(restored.stdout)["ended_runs"] == 2
    assert prepared.rows("SELECT enabled FROM cron") == [(False,)]
    assert prepared.rows("SELECT count(*) FROM webhook_delivery WHERE ended_at IS NULL") == [(0,)]
    ended = prepared.rows("SELECT status, cancel_requested FROM run ORDER BY status")
    # Upkeep ends the running run when its lease has expired.
    assert ended == [("interrupted", "interrupt"), ("running", "interrupt"), ("success", None)]


@pytest.mark.release
@pytest.mark.parametrize("options", [(), ("--paused",)])
def test_a_later_release_restores_this_ones_backup_at_its_own_version(
    target: Service, made: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    code = next_release.tree(tmp_path / "later")
    restored = subprocess.run(
        [sys.executable, "-m", "cli", "restore", str(made), *options],
        cwd=code,
        env={
            name: value for name, value in {**os.environ, **target.environment}.items() if value is not None
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert restored.returncode == 0, restored.stderr
    assert database_version.applied(target.url) == next_release.NUMBER
    assert target.rows(f"SELECT count({next_release.COLUMN}), count(*) FROM run") == [(0, 3)]


def test_embedded_servers_are_started_for_it(made: Path, tmp_path: Path) -> None:
    """Without DATABASE_URL, both commands start the embedded PostgreSQL and stop it afterwards.

    The data directory, in which the sealed keys are stored, is created.
    """
    service = Service("", tmp_path / "new" / "data", None)
    own = {"DATABASE_URL": None}
    restored = service.runyard("restore", made, "--passphrase-file", tmp_path / "phrase", env=own)
    assert restored.exit_code == 0, text_of(restored)
    assert (service.folder / "secret.key").read_text().strip() == KEY
    assert service.folder.stat().st_mode & 0o777 == 0o700
    again = service.runyard("backup", tmp_path / "again.backup", "--json", env=own)
    assert again.exit_code == 0, text_of(again)
    counts = contents.counts(archive.read(made).authenticate([KEY]).tables)
    assert json.loads(again.stdout)["counts"] == counts
    assert not (service.folder / "postgres" / "postmaster.pid").exists()


def test_without_a_database_it_says_what_to_set(tmp_path: Path) -> None:
    said = Service("", tmp_path / "none").runyard("backup", tmp_path, env={"DATABASE_URL": None})
    assert (said.exit_code, "RUNYARD_DATA_DIR" in said.stderr) == (1, True)
    assert not (tmp_path / "none").exists()
