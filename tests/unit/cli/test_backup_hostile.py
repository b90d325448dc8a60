"""Hostile backups: `restore` and `--check` refuse all of them without executing or changing anything.

Files without a valid signature stand for an attacker without the key. Files with a valid signature test the second
line of defence: even an owner of the key can only supply rows of known tables.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cli.backups import archive, contents, database, keys, restoring
from cli.backups.archive import Backup
from cli.backups.keys import fingerprint
from cli.backups.manifest import Table
from cli.errors import CommandFailed
from cli.machine import embedded
from shared.infra import encryption
from shared.infra.database_version import needed
from tests.support.backups import KEY, OTHER, PASSPHRASE, Service, everything, text_of

# Statements of each kind that a dump can hold. Each one executes or prepares `touch MARKER`.
COMMAND = "COPY (SELECT 1) TO PROGRAM 'touch MARKER'"
BODY = f"$$ BEGIN {COMMAND}; RETURN NULL; END $$"
OBJECTS = {
    "function": f"CREATE FUNCTION evil_f() RETURNS int LANGUAGE plpgsql AS {BODY}",
    "CHECK": "ALTER TABLE organization ADD CONSTRAINT evil CHECK (evil(name))",
    "trigger": f"CREATE FUNCTION evil_t() RETURNS trigger LANGUAGE plpgsql AS {BODY};"
    " CREATE TRIGGER evil BEFORE INSERT ON thread FOR EACH ROW EXECUTE FUNCTION evil_t()",
    "default": "ALTER TABLE organization ALTER COLUMN created_at SET DEFAULT CASE WHEN evil('') THEN now() END",
    "index": "CREATE INDEX evil_index ON organization (evil(name))",
    "statistics": "CREATE STATISTICS evil_statistics ON (evil(name)), id FROM organization",
    "domain": "CREATE DOMAIN evil_domain AS text CHECK (evil(VALUE)); ALTER TABLE cron ALTER COLUMN schedule TYPE evil_domain",
    "type": "CREATE TYPE evil_type AS (a int); CREATE TYPE evil_enum AS ENUM ('a')",
    "view": "CREATE VIEW evil_view AS SELECT evil(name) FROM organization",
    "materialized view": "CREATE MATERIALIZED VIEW evil_materialized AS SELECT evil('') WITH NO DATA",
    "rule": "CREATE RULE evil_rule AS ON INSERT TO cron DO ALSO SELECT evil('')",
    "policy": "ALTER TABLE run ENABLE ROW LEVEL SECURITY; CREATE POLICY evil_policy ON run USING (evil(''))",
    "aggregate": "CREATE FUNCTION evil_s(int, int) RETURNS int LANGUAGE sql AS 'SELECT 1';"
    " CREATE AGGREGATE evil_sum(int) (SFUNC = evil_s, STYPE = int)",
    "operator": "CREATE FUNCTION evil_o(json, json) RETURNS bool LANGUAGE sql AS 'SELECT true';"
    " CREATE OPERATOR === (LEFTARG = json, RIGHTARG = json, FUNCTION = evil_o)",
    "cast": "CREATE FUNCTION evil_c(text) RETURNS point LANGUAGE sql AS 'SELECT NULL::point';"
    " CREATE CAST (text AS point) WITH FUNCTION evil_c(text) AS IMPLICIT",
    "sequence": "CREATE SEQUENCE evil_sequence",
    "table": "CREATE TABLE evil_table (a int)",
    "inherited table": "CREATE TABLE evil_child () INHERITS (organization)",
    "schema": "CREATE SCHEMA evil_schema; CREATE TABLE evil_schema.run (a int)",
    "extension": "CREATE EXTENSION IF NOT EXISTS vector SCHEMA public",
    "language": "CREATE LANGUAGE evil_language HANDLER plpgsql_call_handler",
    "foreign server": "CREATE FOREIGN DATA WRAPPER evil_wrapper; CREATE SERVER evil_server FOREIGN DATA WRAPPER evil_wrapper;"
    " CREATE FOREIGN TABLE evil_foreign (a int) SERVER evil_server",
    "publication": "CREATE PUBLICATION evil_publication FOR ALL TABLES",
    "text search": "CREATE TEXT SEARCH CONFIGURATION evil_search (COPY = english)",
    "collation": "CREATE COLLATION evil_collation FROM \"C\"",
    "comment": "COMMENT ON TABLE run IS 'evil'",
    "grant": "GRANT ALL ON run TO PUBLIC",
    "default privileges": "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC",
    "large object": "SELECT lo_from_bytea(0, 'evil')",
    "event trigger": f"CREATE FUNCTION evil_e() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN {COMMAND}; END $$;"
    " CREATE EVENT TRIGGER evil_event ON ddl_command_start EXECUTE FUNCTION evil_e()",
}  # fmt: skip
STATEMENTS = {
    "COPY TO PROGRAM": COMMAND,
    "COPY FROM PROGRAM": "COPY organization FROM PROGRAM 'touch MARKER'",
    "DO": f"DO $$ BEGIN {COMMAND}; END $$",
    "role": "ALTER ROLE CURRENT_USER SET search_path = evil",
    "database": "ALTER SYSTEM SET archive_command = 'touch MARKER'",
    "search_path": "SELECT pg_catalog.set_config('search_path', 'evil', false)",
    "function of a file": "CREATE FUNCTION evil() RETURNS int LANGUAGE c AS '/tmp/evil.so', 'evil'",
    "psql's shell": "\\! touch MARKER",
    "psql's output": "\\o |touch MARKER",
    "psql's copy": "\\copy organization to program 'touch MARKER'",
    "end of COPY": f"\\.\n{COMMAND};",
}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A path at which every hostile command creates a file. PostgreSQL's user may write there."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o777)
    return tmp_path / "marker"


def assert_refused(target: Service, path: Path, expected: str = "", kind: str = "") -> None:
    """Assert that `restore` refuses the file with the text `expected`, and that the database stays empty."""
    refused = target.runyard("restore", path)
    assert refused.exit_code == 1, f"{kind}: {text_of(refused)}"
    assert refused.stderr.startswith("Error: "), f"{kind}: {text_of(refused)}"
    assert expected in refused.stderr, f"{kind}: {text_of(refused)}"
    assert target.tables() == set(), kind


# Files of pg_dump


def add_hostile_objects(source: Service, marker: Path) -> None:
    """Create a hostile object of every kind."""
    with psycopg.connect(source.url) as conn:
        conn.execute("CREATE FUNCTION evil(text) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true'")
        for statement in OBJECTS.values():
            conn.execute(statement.replace("MARKER", str(marker)).encode())
        conn.execute("ALTER EVENT TRIGGER evil_event DISABLE")
        body = f"BEGIN {COMMAND.replace('MARKER', str(marker))}; RETURN true; END"
        conn.execute(
            f"CREATE OR REPLACE FUNCTION evil(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $f$ {body} $f$".encode()
        )
        conn.execute("ALTER EVENT TRIGGER evil_event ENABLE")


def pg_dump(service: Service, *options: str) -> bytes:
    command = [str(embedded.postgres_program("pg_dump")), *options, service.url]
    return subprocess.run(command, capture_output=True, check=True).stdout


def definitions(service: Service) -> list[bytes]:
    lines = pg_dump(service, "--schema-only", "--no-owner", "--restrict-key=x").splitlines()
    return [line for line in lines if not line.startswith(b"--")]


def test_a_backup_of_a_database_with_hostile_objects_holds_rows_only_and_dumps_of_it_are_refused(
    source: Service, migrated: str, pristine: Service, target: Service, marker: Path, tmp_path: Path
) -> None:
    add_hostile_objects(source, marker)
    custom, plain = pg_dump(source, "--format=custom"), pg_dump(source)
    assert b"evil" in plain
    old = of_format_1(custom, tmp_path / "old.backup")
    assert_refused(target, old, "has backup format 1, which development versions")
    for kind, dump in (("custom", custom), ("plain", plain)):
        path = tmp_path / f"{kind}.backup"
        path.write_bytes(dump)
        assert_refused(target, path, "is no backup of runyard", kind)

    made = source.runyard("backup", tmp_path / "hostile.backup")
    assert made.exit_code == 0, text_of(made)
    restored = target.runyard("restore", tmp_path / "hostile.backup")

    assert restored.exit_code == 0, text_of(restored)
    assert not marker.exists()
    assert definitions(target) == definitions(Service(migrated, tmp_path))
    assert target.rows("SELECT count(*) FROM pg_largeobject_metadata") == [(0,)]
    assert everything(target) == everything(pristine)


def of_format_1(dump: bytes, path: Path) -> Path:
    """Write a backup of format 1, which development versions wrote: a tar of a pg_dump file and a manifest."""
    manifest = {
        "kind": "runyard backup",
        "format": 1,
        "version": "0.1",
        "dump": {"sha256": hashlib.sha256(dump).hexdigest()},
    }
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in (("database.dump", dump), ("manifest.json", json.dumps(manifest).encode())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


# Files of an attacker without the key


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A valid backup with three tables and few rows."""
    encryption.configure([KEY])
    rows = {"organization": b"1\tone\n2\ttwo\n", "archive": b"d\t1\n", "secret": b""}
    secret = b"r\tA\t\\\\x" + encryption.encrypt("s3cret").hex().encode() + b"\n"
    texts = [
        (part("organization", ("id", "name")), rows["organization"]),
        (part("archive", ("digest", "size")), rows["archive"]),
        (part("secret", ("revision_id", "name", "value")), secret),
    ]
    texts.sort(key=lambda each: list(contents.KNOWN).index(each[0].name))
    return written(tmp_path / "small.backup", texts)


def part(name: str, columns: tuple[str, ...]) -> Table:
    return Table(name, columns, 0, 0, 0, "")


def written(path: Path, parts: list[tuple[Table, bytes]], *, key: str = KEY, **changes: Any) -> Path:
    """Write and sign a backup of these parts. The numbers of rows, sizes and digests are computed from their texts."""
    with archive.writing(path, path.with_name("part"), replace=True) as writer:
        tables = []
        for table, text in parts:
            tables.append(replace(table, rows=text.count(b"\n"), **writer.add_table([text])))
        manifest = {
            **{"kind": "runyard backup", "version": "0.1", "migration": needed(), "postgres": 18},
            **{"made_at": "2026-01-01T00:00:00+00:00", "identities": {}, "live_runs": 0, "encrypted": 1},
            **{"unreadable": 0, "keys": [fingerprint(key)], "sealed_keys": None, "tables": tables},
        }
        writer.add_manifest({**manifest, **changes}, key)
    return path


def is_refused(path: Path) -> bool:
    """Return whether a check without a database refuses the file with an error that names it."""
    try:
        restoring.check(archive.read(path).authenticate([KEY]))
    except CommandFailed as error:
        return str(path) in str(error)
    return False


def test_no_byte_can_be_changed_removed_or_added_and_random_ones_are_no_backup(small: Path) -> None:
    data = small.read_bytes()
    assert not is_refused(small)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        cuts = (data[:place], data[: place + 1] + data[place:], data[:place] + data[place + 1 :])
        for content in (changed, cuts[place % 3]):
            small.write_bytes(content)
            assert is_refused(small), f"at byte {place}"

    for more in (b"\0", b"\n", bytes(1024), data, data[len(archive.MAGIC) :], data[-archive.TRAILER.size :]):
        small.write_bytes(data + more)
        assert is_refused(small)
        small.write_bytes(more + data)
        assert is_refused(small)

    randoms = random.Random(3)
    for length in range(100):
        small.write_bytes(archive.MAGIC + randoms.randbytes(length))
        assert is_refused(small)


def test_a_manifest_that_is_none_and_a_fifo_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.backup"
    for text in (b"{", b"[]", b"null", b"[" * 100_000, b'{"a":' * 100_000, b'"\xff"', b"{}", b"1e999"):
        signature = keys.signature(text, KEY)
        path.write_bytes(archive.MAGIC + text + archive.TRAILER.pack(len(text), signature))
        with pytest.raises(CommandFailed) as refused:
            archive.read(path)
        assert "its manifest is not valid" in str(refused.value), text[:10]

    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(CommandFailed, match="is no regular file"):
        archive.read(tmp_path / "fifo")


def opened(path: Path) -> Backup:
    return archive.read(path).authenticate([KEY])


def assembled(path: Path, parts: list[bytes], end: bytes) -> Path:
    path.write_bytes(b"".join([archive.MAGIC, *parts, end]))
    return path


def test_parts_cannot_be_moved(target: Service, made: Path, small: Path, tmp_path: Path) -> None:
    data, tables = made.read_bytes(), opened(made).tables
    parts, place = [], len(archive.MAGIC)
    for table in tables:
        parts.append(data[place : place + table.size])
        place += table.size
    end, path = data[place:], tmp_path / "moved.backup"
    assert assembled(path, parts, end).read_bytes() == data
    same_size = [n for n, table in enumerate(tables) if [each.size for each in tables].count(table.size) > 1]
    swapped = list(parts)
    largest = max(range(len(parts)), key=lambda n: len(parts[n]))
    swapped[largest], swapped[largest - 1] = swapped[largest - 1], swapped[largest]
    assert same_size
    for other in (parts[1:], [*parts, parts[0]], parts[::-1], swapped, [parts[0], *parts]):
        assert_refused(target, assembled(path, other, end))
    small_end = small.read_bytes()[len(archive.MAGIC) + sum(table.size for table in opened(small).tables) :]
    assert_refused(target, assembled(path, parts, small_end))


def test_what_is_no_backup_is_refused(target: Service, tmp_path: Path) -> None:
    path = tmp_path / "none.backup"
    for content, said in (
        (b"", "is no backup"),
        (b"runyard backup 3\n", "another backup format than 2"),
        (bytes(4096), "is no backup"),
    ):
        path.write_bytes(content)
        assert_refused(target, path, said)

    for kind in (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        with tarfile.open(path, "w") as tar:
            member = tarfile.TarInfo("../../evil")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        assert_refused(target, path, "is no backup")
    assert not (tmp_path.parent.parent / "evil").exists()


def test_a_file_of_another_key_is_refused(target: Service, made: Path) -> None:
    forged = signed(made, lambda parts: parts, key=OTHER)
    assert_refused(
        target,
        forged,
        f"signed with the encryption key {fingerprint(OTHER)}, and the keys here are {fingerprint(KEY)}",
    )
    forged = signed(made, lambda parts: parts, key=OTHER, keys=[fingerprint(KEY)])
    assert_refused(target, forged, "is not authentic")


def test_another_s_sealed_keys_open_nothing_and_sign_in_nobody_s_name(
    target: Service, made: Path, tmp_path: Path
) -> None:
    """Sealed keys of an attacker open with the attacker's passphrase only, and cannot sign as another key."""
    target.keys = None
    theirs = signed(
        made, lambda parts: parts, key=OTHER, sealed_keys=keys.seal([OTHER], "a phrase of somebody else")
    )
    refused = target.runyard("restore", theirs, "--passphrase-file", tmp_path / "phrase")
    assert "does not open the keys" in refused.stderr
    spliced = signed(made, lambda parts: parts, key=OTHER, sealed_keys=archive.read(made).sealed_keys)
    refused = target.runyard("restore", spliced, "--passphrase-file", tmp_path / "phrase")
    assert "cannot be authenticated" in refused.stderr
    refused = target.runyard("restore", made)
    assert "--passphrase-file opens those in the backup" in refused.stderr
    assert target.tables() == set()

    target.folder.mkdir()
    (target.folder / "secret.key").write_text(KEY)
    sealed = keys.seal([OTHER], PASSPHRASE)
    forged = signed(made, lambda parts: parts, key=OTHER, sealed_keys=sealed, keys=[fingerprint(KEY)])
    check = ("backup", "--check", forged, "--passphrase-file", tmp_path / "phrase")
    assert "is not authentic" in target.runyard(*check).stderr
    signed(made, lambda parts: parts, key=OTHER, sealed_keys=sealed)
    assert f"signed with the encryption key {fingerprint(OTHER)}" in target.runyard(*check).stdout


# Files of an attacker with the key

Parts = list[tuple[Table, bytes]]


def signed(made: Path, change: Callable[[Parts], Parts], *, key: str = KEY, **changes: Any) -> Path:
    """Return a copy of the backup with changed parts or manifest fields and a valid signature."""
    backup = opened(made)
    parts = [(table, b"".join(backup.blocks(table))) for table in backup.tables]
    manifest = {name: value for name, value in backup.manifest.items() if name != "tables"}
    return written(
        made.with_name("signed.backup"),
        change(parts),
        key=key,
        **{**manifest, "keys": [fingerprint(key)], **changes},
    )


def with_table(name: str, columns: tuple[str, ...], text: bytes) -> Callable[[Parts], Parts]:
    """Return a change that replaces or appends a table."""
    return lambda parts: [*(each for each in parts if each[0].name != name), (part(name, columns), text)]


def in_order(parts: Parts) -> Parts:
    return sorted(parts, key=lambda each: list(contents.KNOWN).index(each[0].name))


SIGNED: dict[str, tuple[Callable[[Parts], Parts], str]] = {
    "unknown table": (with_table("evil", ("a",), b"1\n"), "The table 'evil' is not one of runyard's"),
    "table of PostgreSQL": (with_table("pg_authid", ("rolname",), b"x\n"), "'pg_authid' is not one of"),
    "transient table": (with_table("leader", ("role",), b"x\n"), "'leader' is not one of"),
    "version table": (with_table("alembic_version", ("version_num",), b"x\n"), "'alembic_version' is not one of"),
    "name with a statement": (with_table("run (a) from program 'id'", ("a",), b"1\n"), "is not valid (tables)"),
    "name with a schema": (with_table("pg_catalog.pg_authid", ("a",), b"1\n"), "is not valid (tables)"),
    "unknown column": (with_table("cron", ("evil",), b"1\n"), "column 'evil' of the table 'cron'"),
    "system column": (with_table("cron", ("ctid",), b"1\n"), "column 'ctid' of the table 'cron'"),
    "column with a statement": (with_table("cron", ("a) from program 'id' --",), b"1\n"), "is not valid (tables)"),
    "no columns": (with_table("cron", (), b"1\n"), "is not valid (tables)"),
    "table twice": (lambda parts: [*parts[:2], *parts[1:]], "not in the order"),
    "other order": (lambda parts: parts[::-1], "not in the order"),
}  # fmt: skip


def test_a_signed_file_holds_known_tables_and_a_valid_manifest_only(target: Service, made: Path) -> None:
    for kind, (change, expected) in SIGNED.items():
        assert_refused(target, signed(made, change), expected, kind)
    for kind, (changes, expected) in MANIFESTS.items():
        assert_refused(target, signed(made, lambda parts: parts, **changes), expected, kind)


MANIFESTS: dict[str, tuple[dict[str, Any], str]] = {
    "newer version": ({"migration": "9999"}, "upgrade it first"),
    "no version": ({"migration": "0000"}, "no release has the database version 0000"),
    "name of a version": ({"migration": "head"}, "is not valid (migration)"),
    "unknown field": ({"statements": [COMMAND]}, "is not valid (fields)"),
    "number as text": ({"live_runs": "1"}, "is not valid (live_runs)"),
    "escape codes": ({"version": "\x1b[31m"}, "is not valid (version)"),
    "costly passphrase": (
        {"sealed_keys": {"n": 2**40, "salt": "0" * 32, "sealed": "x"}},
        "is not valid (sealed_keys)",
    ),
    "other kind": ({"kind": "letter"}, "is not valid (kind)"),
}


def test_statements_in_the_place_of_rows_are_refused(target: Service, made: Path, marker: Path) -> None:
    columns = tuple(contents.KNOWN["organization"])
    for kind, statement in STATEMENTS.items():
        text = f"{statement.replace('MARKER', str(marker))};\n".encode()
        change = with_table("organization", columns, text)
        path = signed(made, lambda parts, change=change: in_order(change(parts)))
        assert_refused(target, path, "has not as many values as columns", kind)
        assert not marker.exists(), kind


def test_statements_in_values_stay_text(
    source: Service, target: Service, marker: Path, tmp_path: Path
) -> None:
    names = [statement.replace("MARKER", str(marker)) for statement in (OBJECTS | STATEMENTS).values()]
    with psycopg.connect(source.url) as conn:
        for name in [*names, "\\.", "\\N", "a\tb\nc\rd\\", "COPY run FROM stdin;"]:
            conn.execute("INSERT INTO organization (id, name) VALUES (gen_random_uuid(), %s)", (name,))
    assert source.runyard("backup", tmp_path / "one.backup").exit_code == 0
    restored = target.runyard("restore", tmp_path / "one.backup")
    assert restored.exit_code == 0, text_of(restored)
    assert everything(target) == everything(source)
    assert not marker.exists()


UNFIT: list[tuple[Callable[[Parts], Parts], dict[str, Any], str]] = [
    (lambda parts: parts, {"identities": {"pg_class.oid": 5}}, "names other identity columns"),
    (
        with_table("archive", ("digest", "digest", "size"), b"d\td\t1\n"),
        {},
        "does not hold the columns that archive has",
    ),
    (
        with_table("last_backup", ("is_last", "made_at", "bytes"), b"t\t\x1b]0;evil\x07\\n\xc2\x9b31m\t1\n"),
        {},
        "PostgreSQL says: invalid input syntax",
    ),
]


def test_rows_that_do_not_fit_the_schema_change_nothing_and_are_quoted_without_control_characters(
    prepared: Service, made: Path
) -> None:
    before, definitions_before = everything(prepared), definitions(prepared)
    for change, changes, said in UNFIT:
        path = signed(made, lambda parts, change=change: in_order(change(parts)), **changes)
        refused = prepared.runyard("restore", path)
        assert (refused.exit_code, said in refused.stderr) == (1, True), text_of(refused)
        assert refused.stderr.strip().isprintable()
        assert everything(prepared) == before, said
    assert definitions(prepared) == definitions_before


# Compressed parts


def compressed(path: Path, data: bytes, **claims: Any) -> Path:
    """Write a signed backup with one part of these bytes. `claims` replace fields of the part's manifest entry."""
    table = replace(part("archive", ("digest", "size")), rows=1, text_bytes=4, size=len(data))
    table = replace(table, sha256=hashlib.sha256(data).hexdigest(), **claims)
    empty = written(path, [], tables=[])
    manifest = {**archive.read(empty).manifest, "tables": [asdict(table)]}
    text = json.dumps(manifest).encode()
    return assembled(path, [data, text], archive.TRAILER.pack(len(text), keys.signature(text, KEY)))


def gzip(text: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=archive.GZIP)
    return deflate.compress(text) + deflate.flush()


def test_a_part_unpacks_to_no_more_than_the_manifest_says(tmp_path: Path) -> None:
    encryption.configure([KEY])
    assert not is_refused(compressed(tmp_path / "good", gzip(b"d\t1\n")))
    bomb = gzip(bytes(64 * 1024 * 1024))
    backup = opened(compressed(tmp_path / "bomb", bomb))
    blocks = backup.blocks(backup.tables[0])
    with pytest.raises(CommandFailed, match="is damaged"):
        next(blocks)
    whole = opened(compressed(tmp_path / "whole", bomb, text_bytes=64 * 1024 * 1024))
    assert max(len(block) for block in whole.blocks(whole.tables[0])) <= archive.READ_BYTES

    stream = gzip(b"d\t1\n")
    for data in (
        b"",
        b"d\t1\n",
        gzip(b""),
        gzip(b"d\t12\n"),
        gzip(b"d\t1"),
        stream[:-9],
        stream[:-8] + bytes(8),
    ):
        assert is_refused(compressed(tmp_path / "bad", data)), data


def test_a_part_is_unpacked_only_if_it_is_authentic(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(small.read_bytes())
    data[len(archive.MAGIC) + 12] ^= 1
    small.write_bytes(data)
    monkeypatch.setattr(contents, "read_all", lambda _: pytest.fail("a changed part was unpacked"))
    with pytest.raises(CommandFailed, match="is damaged"):
        restoring.check(opened(small))


def remove(path: Path) -> None:
    path.unlink()


def change_a_byte(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    changed[len(archive.MAGIC) + 12] ^= 1
    path.write_bytes(changed)


def test_a_file_that_is_harmed_between_its_check_and_the_restore_is_refused(
    target: Service, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for harm, says in ((change_a_byte, "is damaged"), (remove, "No such file")):
        path = Path(shutil.copy(made, made.with_name("harmed.backup")))

        def harm_and_look(
            conn: database.Connection, harm: Callable[[Path], None] = harm, path: Path = path
        ) -> restoring.TargetDatabase:
            monkeypatch.undo()
            harm(path)
            return restoring.inspect_target(conn)

        monkeypatch.setattr(restoring, "inspect_target", harm_and_look)
        assert_refused(target, path, says)
