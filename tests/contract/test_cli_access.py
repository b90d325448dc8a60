"""Commands `runyard keys`, `orgs` and `encryption` of an operator and a tenant, against the real service."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import insert, select
from typer.testing import Result
from werkzeug.serving import make_server
from werkzeug.wsgi import LimitedStream

import tests.support.factories as make
from cli.operating.keys import id_of
from cli.output import validity
from shared.access import organizations
from shared.infra import encryption
from shared.infra.postgres import connection
from shared.models import SECRET
from tests.contract.conftest import ADMIN_KEY
from tests.support.commands import invoke

OLD = encryption.new_key()


@pytest.fixture
def url(app: Flask) -> Iterator[str]:
    """URL of the running service."""
    organizations.forget()
    encryption.configure([OLD])

    def bodies_end(environ: Any, start_response: Any) -> Any:
        """End the body after Content-Length bytes, as gunicorn does. This server would otherwise wait for more."""
        size = int(environ.get("CONTENT_LENGTH") or 0)
        return app({**environ, "wsgi.input": LimitedStream(environ["wsgi.input"], size)}, start_response)

    server = make_server("127.0.0.1", 0, bodies_end, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    encryption.configure([])


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data directory, and an environment without any key or URL."""
    for name in list(os.environ):
        if name.startswith(("RUNYARD_", "LANG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RUNYARD_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Operator:
    """Runs the command line with the operator's key."""

    def __init__(self, url: str, key: str = ADMIN_KEY) -> None:
        self._env = {"RUNYARD_URL": url, "RUNYARD_API_KEY": key, "COLUMNS": "200"}

    def __call__(self, *words: str, fails: bool = False, **more: Any) -> Result:
        ran = invoke(*words, env=self._env, **more)
        assert (ran.exit_code != 0) is fails, ran.output
        return ran

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json").stdout)


@pytest.fixture
def operator(url: str, data_dir: Path) -> Operator:
    return Operator(url)


def test_a_key_is_made_listed_renamed_and_revoked(operator: Operator, url: str) -> None:
    created = operator("keys", "create", "--name", "ci", "--role", "deploy", "--days", "7")
    text = created.stdout.strip()
    assert "with the role deploy: it may also change deployments" in created.stderr
    (row,) = operator.json("keys", "list")
    assert (row["name"], row["role"], row["id"]) == ("ci", "deploy", id_of(text))
    assert Operator(url, text)("list").stdout.startswith("There are no deployments.")

    operator("keys", "rename", row["id"], "builds")
    listed = operator("keys", "list").stdout
    assert "builds" in listed
    assert "valid until" in listed
    assert text not in listed

    assert operator("keys", "revoke", text).stdout == f"Revoked {row['id']}.\n"
    assert "revoked 2" in operator("keys", "list").stdout
    assert (
        "does not accept the API key from RUNYARD_API_KEY of the environment"
        in Operator(url, text)("list", fails=True).output
    )


def test_an_organization_gets_its_first_key_and_goes_with_everything(operator: Operator, url: str) -> None:
    assert "runyard keys create --org acme --role admin`" in operator("orgs", "create", "acme").stdout
    key = operator.json("keys", "create", "--org", "acme", "--role", "admin")["key"]
    tenant = Operator(url, key)
    assert [row["name"] for row in tenant.json("orgs", "list")] == ["acme"]
    assert [row["name"] for row in operator.json("orgs", "list")] == ["default", "acme"]
    assert "operator" in tenant("orgs", "create", "mine", fails=True).output
    assert "does not belong" in tenant("keys", "list", "--org", "default", fails=True).output

    operator("orgs", "rename", "acme", "acme-2")
    assert operator("orgs", "delete", "acme-2", fails=True, input="n\n").exit_code == 1
    assert operator("orgs", "delete", "acme-2", "--force").stdout == "Deleted acme-2.\n"
    assert [row["name"] for row in operator.json("orgs", "list")] == ["default"]
    assert "401" in tenant("list", fails=True).output


def test_what_cannot_be_done_is_said_in_a_sentence(operator: Operator, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        (("keys", "create", "--role", "king"), "There is no role 'king'"),
        (("keys", "revoke", "../deployments"), "is no key's id"),
        (("keys", "revoke", "12345678"), "API key 12345678 not found"),
        (("orgs", "delete", "nobody", "--force"), "There is no organization 'nobody'"),
        (("orgs", "delete", "default", "--force"), "The default organization cannot be deleted"),
        (("orgs", "create", "two words"), "name: must match"),
        (("orgs", "create", "default"), "already exists"),
    ]
    for words, said in rows:
        with subtests.test(words=words, said=said):
            ran = operator(*words, fails=True)
            assert ran.output.startswith("Error: ")
            assert said in ran.output


def test_without_any_key_one_is_made_in_the_database(
    url: str, data_dir: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    ran = invoke("keys", "create", "--name", "first", "--role", "operator")
    assert ran.exit_code == 0, ran.output
    assert [row["name"] for row in Operator(url, ran.stdout.strip()).json("keys", "list")] == ["first"]
    ran = invoke("keys", "create", "--json")
    made = json.loads(ran.stdout)
    assert (made["role"], made["id"], ran.stderr) == ("run", id_of(made["key"]), "")
    refused = invoke("keys", "create", "--local", "--org", "nobody")
    assert "There is no organization 'nobody'" in refused.output


def test_a_keys_state_is_said() -> None:
    for revoked_at, expires_at, said in (
        (None, None, "valid"),
        (None, "2120-01-01T00:00:00+00:00", "valid until 21"),
        (None, "2020-01-01T12:00:00+00:00", "expired 2020-01-0"),
        ("2020-01-01T12:00:00+00:00", "2120-01-01T00:00:00+00:00", "revoked 2020-01-0"),
    ):
        found = validity({"revoked_at": revoked_at, "expires_at": expires_at})
        assert found.startswith(said), (found, said)


# Encryption keys


@pytest.fixture
def stored(db: Any) -> Iterator[None]:
    """Store a secret that is encrypted with the old key."""
    before = encryption._cipher, encryption._first
    encryption.configure([OLD])
    revision_id = make.revision(make.deployment(serving=False).id)
    with connection() as conn:
        conn.execute(
            insert(SECRET), {"revision_id": revision_id, "name": "A", "value": encryption.encrypt("hush")}
        )
    yield
    encryption._cipher, encryption._first = before


def secret() -> bytes:
    with connection() as conn:
        return bytes(conn.execute(select(SECRET.c.value)).scalar_one())


def rotate(*words: str) -> Result:
    return invoke("encryption", "rotate", *words)


def test_the_key_in_the_data_directory_is_changed(
    stored: None, data_dir: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    file = data_dir / "secret.key"
    file.write_text(OLD + "\n")
    made = invoke("encryption", "new-key")
    assert "Restart `runyard up`" in made.output
    new, old = file.read_text().strip().split(",")
    assert old == OLD
    assert file.stat().st_mode & 0o077 == 0

    started = data_dir / "url"  # file that a started service writes
    started.write_text("http://127.0.0.1:1")
    os.utime(started, (1, 1))
    assert "Restart it first" in rotate().output, "the service that runs does not know the new key"
    os.utime(started)

    ran = rotate()
    assert ran.exit_code == 0, ran.output
    assert "secret.value: 1 encrypted anew" in ran.output
    encryption.configure([new])
    assert encryption.decrypt(secret()) == "hush"
    assert json.loads(rotate("--json").stdout) == {"rotated": 0, "current": 1, "unreadable": 0}


def test_keys_of_the_environment_are_taken_as_they_are(
    stored: None, data_dir: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    new = invoke("encryption", "new-key").stdout.strip()
    monkeypatch.setenv("RUNYARD_ENCRYPTION_KEYS", f"{new},{OLD}")
    assert rotate().exit_code == 1, "it asks whether every process has the key"
    assert rotate("--yes").exit_code == 0
    monkeypatch.setenv("RUNYARD_ENCRYPTION_KEYS", OLD)
    lost = rotate("--yes")
    assert lost.exit_code == 1
    assert "1 values cannot be read" in lost.output


def test_without_any_key_there_is_nothing_to_rotate(data_dir: Path) -> None:
    ran = rotate("--yes")
    assert ran.exit_code == 1
    assert "Set RUNYARD_ENCRYPTION_KEYS" in ran.output
