"""`runyard doctor` names the variable of each problem, prints no password, and changes nothing."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import Engine, insert

from cli.doctor import bus, database, findings, machine, screen
from cli.doctor.bus import Bus
from cli.doctor.database import Database
from cli.doctor.database import check as check_database
from cli.doctor.findings import Finding, State
from shared.infra import egress, encryption, postgres
from shared.infra.database_version import needed
from shared.infra.postgres import connection
from shared.models import SECRET
from shared.settings import MIB, Settings
from tests.support import factories
from tests.support.commands import invoke
from tests.support.databases import fresh
from tests.support.oauth_server import oauth_server

PASSWORD = "hunter@2/un#guessable"
LEVEL_0 = {
    "level": 0,
    "meaning": "as this user",
    "reasons": ["no bwrap"],
    "advice": "Install bwrap.",
    "refusal": "",
    "uv": "1",
    "pythons": [],
}

Doctor = Callable[[Mapping[str, str]], dict[str, Finding]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Return a function that examines an isolated data directory and returns the findings by name.

    Skips the trial of bubblewrap, which takes seconds.
    """
    monkeypatch.setattr(machine, "probe_user_code", lambda settings, environment: LEVEL_0)

    def examine(environment: Mapping[str, str]) -> dict[str, Finding]:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            free = taken.getsockname()[1]
        own = {
            "RUNYARD_DATA_DIR": str(tmp_path / "data"),
            "RUNYARD_PORT": str(free),
            "PATH": os.environ["PATH"],
        }
        return named(screen.examine({**own, **environment}))

    return examine


def named(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_before_the_first_start_nothing_fails_and_nothing_is_made(doctor: Doctor, tmp_path: Path) -> None:
    found = doctor({})

    assert [finding for finding in found.values() if finding.state is State.FAILS] == []
    assert "not started" in found["PostgreSQL"].found
    assert "not started" in found["Valkey"].found
    assert "made by the first start" in found["data directory"].found
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "data").write_text("")

    assert doctor({})["data directory"].state is State.FAILS


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DATABASE_URL", "no address", "cannot be read"),
        ("DATABASE_URL", f"mysql://root:{PASSWORD}@localhost/x", "cannot be read"),
        ("DATABASE_URL", "postgresql://root:un/guessable", "cannot be read"),
        ("DATABASE_URL", "postgresql://root:unguessable@127.0.0.1:1/x", "refused"),
        ("DATABASE_URL", f"postgresql://root:{PASSWORD}@127.0.0.1:1/x", ""),
        ("DATABASE_URL", "postgresql://127.0.0.1:1/x?password=unguessable&nonsense=1", "cannot be read"),
        ("DATABASE_URL", "postgresql:///x?host=/nowhere", "No such file"),
        ("DATABASE_URL_FILE", "/nowhere/at/all", "cannot read"),
        ("REDIS_URL", "no address", "cannot be read"),
        ("REDIS_URL", "redis://root:un/guessable", "cannot be read"),
        ("REDIS_URL", "redis://:unguessable@127.0.0.1:1/0", "refused"),
        ("REDIS_URL", "redis://:unguessable@127.0.0.1:1/notanumber", ""),
        ("REDIS_URL", "rediss://:unguessable@127.0.0.1:1/0?ssl_cert_reqs=what", ""),
        ("RUNYARD_PORT", "eighty", "must be a number"),
        ("RUNYARD_ISOLATION", "always", "must be one of"),
        ("RUNYARD_LEASE_SECONDS", "1", "must be at least 2"),
    ],
)
def test_a_setting_that_cannot_be_used_is_a_line_with_its_name(
    doctor: Doctor, name: str, value: str, says: str
) -> None:
    found = doctor({name: value})

    finding = found[name.removesuffix("_FILE")]
    assert finding.state is State.FAILS
    assert says.lower() in finding.found.lower()
    assert finding.advice
    assert "data directory" in found  # other checks still run
    assert "guessable" not in str(found)
    assert "hunter" not in str(found)


def test_several_bad_settings_and_a_port_that_somebody_else_holds_are_all_named(doctor: Doctor) -> None:
    found = doctor({"RUNYARD_PORT": "0", "RUNYARD_ALLOW_HTTP": "perhaps", "RUNYARD_LOG_LEVEL": "LOUD"})

    failing = {finding.name for finding in found.values() if finding.state is State.FAILS}
    assert failing == {"RUNYARD_PORT", "RUNYARD_ALLOW_HTTP", "RUNYARD_LOG_LEVEL"}

    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = doctor({"RUNYARD_PORT": str(taken.getsockname()[1])})

    assert found["port"].state is State.FAILS
    assert f"process {os.getpid()}" in found["port"].found


def test_a_wrong_password_of_redis_is_said_and_not_shown(doctor: Doctor, redis_url: str) -> None:
    password = redis_url.partition("://:")[2].partition("@")[0]

    found = doctor({"REDIS_URL": redis_url.replace(password, "unguessable")})

    assert found["REDIS_URL"].state is State.FAILS
    assert "password" in found["REDIS_URL"].found
    assert "unguessable" not in str(found)


@pytest.fixture
def engines(db: Engine) -> Iterator[None]:
    """Restore the process's engines after the test: the command replaces them."""
    before = postgres._engine, postgres._quick
    yield
    postgres._engine, postgres._quick = before


@pytest.mark.usefixtures("db", "engines", "own_key")
def test_servers_that_are_as_they_should_be(doctor: Doctor, database: str, redis_url: str) -> None:
    key = encryption.new_key()
    found = doctor({"DATABASE_URL": database, "REDIS_URL": redis_url, "RUNYARD_ENCRYPTION_KEYS": key})

    wrong = {name: finding for name, finding in found.items() if finding.state is not State.OK}
    assert wrong.keys() <= {"isolation", "memory", "encryption keys"}, wrong
    assert found["schema"].found == f"version {needed()}, as the code's"
    assert found["eviction"].found == "noeviction"
    assert found["append-only file"].found == "on"
    assert found["pub/sub buffers"].found.startswith("64 MiB")
    assert "may take 32" in found["max_connections"].found
    assert key not in str(found)


@pytest.mark.usefixtures("db", "engines", "own_key")
def test_keys_that_do_not_read_what_is_stored_fail(doctor: Doctor, database: str) -> None:
    old, new = encryption.new_key(), encryption.new_key()
    encryption.configure([old])
    revision_id = factories.revision(factories.deployment(serving=False).id)
    with connection() as conn:
        value = {"revision_id": revision_id, "name": "NAME", "value": encryption.encrypt("value")}
        conn.execute(insert(SECRET), value)

    both = doctor({"DATABASE_URL": database, "RUNYARD_ENCRYPTION_KEYS": f"{new},{old}"})
    only = doctor({"DATABASE_URL": database, "RUNYARD_ENCRYPTION_KEYS": new})
    bad = doctor({"DATABASE_URL": database, "RUNYARD_ENCRYPTION_KEYS": "no key"})

    assert both["encryption keys"].state is State.WARNING
    assert "rotate" in both["encryption keys"].advice
    assert only["encryption keys"].state is State.FAILS
    assert bad["encryption keys"].state is State.FAILS
    assert "RUNYARD_ENCRYPTION_KEYS" in bad["encryption keys"].found


def test_a_folder_that_cannot_be_reached_fails_each_check_that_needs_it(
    doctor: Doctor, tmp_path: Path
) -> None:
    found = doctor({"RUNYARD_DATA_DIR": str(tmp_path / ("x" * 300))})  # fails for root too

    assert found["data directory"].state is State.FAILS
    assert "RUNYARD_DATA_DIR" in found["data directory"].advice
    assert {"port", "PostgreSQL", "git", "way out"} <= found.keys()


def test_an_error_that_no_check_expects_is_shown_by_its_place_and_without_its_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def checks() -> Iterator[Finding]:
        yield findings.ok("Redis", "8.0.1")
        raise RuntimeError(PASSWORD)

    first, second = screen.guarded("Redis", checks())

    assert (first.state, second.state) == (State.OK, State.FAILS)
    assert "RuntimeError" in second.found
    shown = capsys.readouterr().err
    assert "in checks" in shown
    assert "guessable" not in str(second) + shown


@pytest.mark.usefixtures("engines")
def test_a_database_without_an_encoding_is_refused_with_what_to_create(doctor: Doctor, database: str) -> None:
    with fresh(database, options="ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0") as url:
        found = doctor({"DATABASE_URL": url})

    assert found["PostgreSQL"].state is State.FAILS
    assert "SQL_ASCII" in found["PostgreSQL"].found
    assert "ENCODING 'UTF8'" in found["PostgreSQL"].advice


AS_IT_SHOULD_BE = Database(
    encoding="UTF8", version="18.1", number=180001, most=100, reserved=3, others=0, is_readonly=False, may_create=True,
    behind_seconds=0.1, schema=needed(), workers=[],
)  # fmt: skip
FLEET = [{"kind": "runner", "version": "0.1.0", "number": 12, "isolation": 2}]


@pytest.mark.parametrize(
    ("change", "name", "state"),
    [
        ({}, "max_connections", State.OK),
        ({"most": 34}, "max_connections", State.FAILS),  # 31 are usable; one process of each kind needs 32
        ({"most": 35}, "max_connections", State.OK),
        ({"others": 80}, "max_connections", State.WARNING),
        ({"workers": FLEET}, "max_connections", State.FAILS),  # 12 runners, a builder and a web need 120
        ({"number": 130000}, "PostgreSQL", State.FAILS),
        ({"is_readonly": True}, "PostgreSQL", State.FAILS),
        ({"encoding": "LATIN1"}, "PostgreSQL", State.FAILS),
        ({"behind_seconds": 86_400.0}, "clock", State.WARNING),
    ],
)
def test_what_a_database_shows_is_judged(change: dict[str, Any], name: str, state: State) -> None:
    found = named(database.judge(replace(AS_IT_SHOULD_BE, **change), "PostgreSQL", is_pooled=False))

    assert found[name].state is state


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, State.OK),
        ({"schema": None}, State.WARNING),
        ({"schema": "0023"}, State.FAILS),  # made before the first release; no migration upgrades it
        ({"schema": "9999"}, State.WARNING),  # a newer release migrated it; this one works with it
        ({"schema": None, "may_create": False}, State.FAILS),
    ],
)
def test_the_schema_is_compared_with_the_code(change: dict[str, Any], state: State) -> None:
    assert database.schema(replace(AS_IT_SHOULD_BE, **change)).state is state


INFO = {
    "redis_version": "8.0.1", "role": "master", "maxmemory_policy": "noeviction", "maxmemory": 1000 * MIB,
    "used_memory": MIB, "aof_enabled": 1, "aof_last_write_status": "ok", "cluster_enabled": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "name", "state"),
    [
        ({}, "Redis", State.OK),
        ({"redis_version": "6.0.9"}, "Redis", State.FAILS),
        ({"role": "slave"}, "Redis", State.FAILS),
        ({"cluster_enabled": 1}, "Redis", State.FAILS),
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", State.FAILS),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 0}, "eviction", State.WARNING),
        ({"aof_enabled": 0}, "append-only file", State.WARNING),
        ({"aof_last_write_status": "err"}, "append-only file", State.FAILS),
        ({"maxmemory": 0}, "memory", State.WARNING),
        ({"used_memory": 850 * MIB}, "memory", State.WARNING),
        ({"used_memory": 990 * MIB}, "memory", State.FAILS),
    ],
)
def test_what_redis_shows_is_judged(change: dict[str, Any], name: str, state: State) -> None:
    found = named(bus.judge(Bus({**INFO, **change}, (64 * MIB, 16 * MIB, 30)), is_embedded=False))

    assert found[name].state is state


@pytest.mark.parametrize(
    ("limits", "state"),
    [
        (None, State.WARNING),
        ((0, 0, 0), State.WARNING),
        ((MIB, MIB, 1), State.WARNING),
        ((32 * MIB, 8 * MIB, 60), State.OK),
    ],
)
def test_the_buffers_of_subscribers_have_a_limit(limits: tuple[int, int, int] | None, state: State) -> None:
    found = named(bus.judge(Bus(INFO, limits), is_embedded=False))

    assert found["pub/sub buffers"].state is state


def test_a_server_that_may_not_be_configured_is_judged_by_its_info(redis: Redis, redis_url: str) -> None:
    redis.execute_command("ACL", "SETUSER", "small", "on", ">word", "~*", "&*", "+@all", "-config")
    try:
        url = "unix://small:word@" + redis_url.rpartition("@")[2]
        found = named(bus.check(Settings(redis_url=url)))
    finally:
        redis.execute_command("ACL", "DELUSER", "small")

    assert found["eviction"].state is State.OK
    assert "does not say" in found["pub/sub buffers"].found


def test_files_that_others_may_read_are_named(doctor: Doctor, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (folder / "secret.key").write_text(encryption.new_key())
    (folder / "secret.key").chmod(0o644)

    found = doctor({})

    assert found["data directory"].state is State.WARNING
    assert found["key files"].state is State.WARNING
    assert "secret.key" in found["key files"].advice


@pytest.mark.parametrize(("space", "inodes", "state"), [
    (9 * machine.GIB, 10**7, State.OK), (machine.GIB, 10**7, State.WARNING), (MIB, 10**7, State.FAILS),
    (9 * machine.GIB, 10, State.FAILS),
])  # fmt: skip
def test_free_disk_and_inodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, space: int, inodes: int, state: State
) -> None:
    free = os.statvfs_result((4096, 4096, 10**9, 10**9, space // 4096, 10**8, inodes, inodes, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda folder: free)

    assert machine.disk(tmp_path).state is state


def test_the_way_out_shows_no_password() -> None:
    shown = machine.proxies(
        {"HTTPS_PROXY": "http://me:unguessable@proxy:3128", "PIP_INDEX_URL": "http://t0ken@x/"}
    )

    assert "http://proxy:3128" in shown.found
    assert "unguessable" not in shown.found
    assert "t0ken" not in shown.found

    url = f"postgresql://me:{PASSWORD}@host/db"
    said = f'could not translate host name "2/un#guessable@host", password {PASSWORD}'

    masked = findings.masked(said, url)

    assert "guessable" not in masked
    assert "hunter" not in masked


def test_a_level_below_the_sandbox_says_what_would_raise_it() -> None:
    found = machine.isolation(LEVEL_0)

    assert (found.state, "no bwrap" in found.found) == (State.WARNING, True)
    assert found.advice == "Install bwrap."
    assert machine.isolation({**LEVEL_0, "refusal": "require"}).state is State.FAILS


def test_the_machine_is_asked_for_its_level_and_its_pythons_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workers").mkdir()  # must not be imported instead of the service's package
    monkeypatch.chdir(tmp_path)
    settings = Settings(data_dir=tmp_path / "data")

    found = machine.probe_user_code(settings, {**os.environ, "RUNYARD_ISOLATION": "none"})
    refused = machine.probe_user_code(
        settings, {**os.environ, "RUNYARD_ISOLATION": "require", "RUNYARD_BWRAP": ""}
    )

    assert found["level"] in (0, 1)
    assert found["pythons"]
    assert "RUNYARD_ISOLATION=require" in refused["refusal"]
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("port", "code"), [("", 0), ("eighty", 1)])
def test_scripts_get_an_exit_code_and_json(
    nowhere: None, monkeypatch: pytest.MonkeyPatch, doctor: Doctor, port: str, code: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = str(taken.getsockname()[1])
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNYARD_PORT", port or free)

    done = invoke("doctor", "--json")

    said = json.loads(done.stdout)
    assert (done.exit_code, said["ok"]) == (code, code == 0)
    assert {"name", "state", "found", "advice"} == set(said["checks"][0])
    shown = invoke("doctor")
    assert shown.exit_code == code
    assert ("RUNYARD_PORT" in shown.stdout) is (code == 1)


def test_servers_of_one_role_are_looked_at_too(redis_url: str) -> None:
    away = "redis://:unguessable@127.0.0.1:1/0"
    found = named(
        bus.check(
            Settings(redis_url=redis_url, redis_broker_url=redis_url, redis_events_urls=(redis_url, away))
        )
    )

    assert found["eviction (REDIS_BROKER_URL)"].state is State.OK
    assert found["eviction (REDIS_EVENTS_URL 1)"].state is State.OK
    assert found["REDIS_EVENTS_URL 2"].state is State.FAILS
    assert "REDIS_EVENTS_URL 2" in found["REDIS_EVENTS_URL 2"].advice
    assert "unguessable" not in str(found)


def test_a_read_replica_that_is_none_is_a_warning(database: str) -> None:
    for url, said in ((database, "no standby"), ("postgresql://me:unguessable@127.0.0.1:1/x", "refused")):
        found = named(check_database(Settings(database_url=database, database_read_url=url)))
        assert found["DATABASE_READ_URL"].state is State.WARNING
        assert said in found["DATABASE_READ_URL"].found
        assert "unguessable" not in str(found)

    found = named(check_database(Settings(database_url=database, database_pooler="transaction")))
    assert "PgBouncer" in found["max_connections"].found


def test_the_provider_that_people_sign_in_with_is_asked(doctor: Doctor) -> None:
    with oauth_server() as provider:
        variables = {
            "RUNYARD_OIDC_ISSUER": provider.url,
            "RUNYARD_OIDC_CLIENT_ID": "runyard",
            "RUNYARD_OIDC_DEFAULT_ROLE": "read",
            "RUNYARD_ALLOW_HTTP": "true",
        }
        refused = doctor(variables)["sign-in"]
        assert refused.state is State.FAILS
        assert "RUNYARD_ALLOWED_ADDRESSES" in str(refused.advice)
        variables["RUNYARD_ALLOWED_ADDRESSES"] = "127.0.0.1"
        good = doctor(variables)["sign-in"]
        assert (good.state, good.found) == (State.OK, f"{provider.url} answers and signs with RS256, ES256")
        provider.keys = []
        assert "publishes no key" in doctor(variables)["sign-in"].found
        provider.metadata = {"issuer": "https://evil.example"}
        assert "names another issuer" in doctor(variables)["sign-in"].found
    assert "sign-in" not in doctor({})
    egress.configure()
