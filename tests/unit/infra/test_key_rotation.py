"""Rotating the encryption key: afterwards the new key alone decrypts everything stored."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import LargeBinary, insert, select

from shared.infra import encryption, key_rotation
from shared.infra.encryption import decrypt, encrypt, new_key
from shared.infra.postgres import connection
from shared.models import IDEMPOTENT_ANSWER, METADATA, SECRET
from tests.support import factories

OLD, NEW = new_key(), new_key()

# Columns of bytes that are not encrypted: hashes, and public or opaque data.
PLAIN = {
    "api_key.secret_hash",
    "session.id",
    "device_login.id",
    "device_login.user_code_hash",
    "question_link.token_hash",
    "upload.token_hash",
    "archive_chunk.data",
    "component_bundle.content",
    "checkpoint.data",
    "checkpoint_blob.data",
    "checkpoint_write.data",
    "oauth_request.state_hash",
    "idempotent_answer.id",
    "idempotent_answer.digest",
}


@pytest.fixture(autouse=True)
def keys(db: Any, own_key: None) -> None:
    encryption.configure([OLD])


def test_every_column_of_bytes_is_known() -> None:
    found = {
        f"{table.name}.{column.name}"
        for table in METADATA.sorted_tables
        for column in table.columns
        if isinstance(column.type, LargeBinary)
    }
    assert set(key_rotation.ENCRYPTED) | PLAIN == found, "say whether a new column is encrypted"


@pytest.fixture
def revision_id() -> UUID:
    return factories.revision(factories.deployment(serving=False).id)


def store(revision_id: UUID, **values: str | bytes) -> None:
    with connection() as conn:
        for name, value in values.items():
            stored = value if isinstance(value, bytes) else encrypt(value)
            conn.execute(insert(SECRET), {"revision_id": revision_id, "name": name, "value": stored})


def stored(revision_id: UUID) -> dict[str, bytes]:
    with connection() as conn:
        rows = conn.execute(select(SECRET.c.name, SECRET.c.value).where(SECRET.c.revision_id == revision_id))
        return {row.name: bytes(row.value) for row in rows}


def test_afterwards_the_new_key_reads_everything(revision_id: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_rotation, "CHUNK", 2)
    values = {f"NAME_{number}": f"value {number}" for number in range(5)}
    store(revision_id, **values)
    organization_id = factories.organization()
    with connection() as conn:
        kept = {
            "id": b"id",
            "organization_id": organization_id,
            "digest": b"digest",
            "answer": encrypt("answer"),
        }
        conn.execute(insert(IDEMPOTENT_ANSWER), kept)

    encryption.configure([NEW, OLD])
    told: dict[str, dict[str, int]] = {}
    totals = key_rotation.rotate(lambda column, counts: told.update({column: dict(counts)}))

    assert totals == {"rotated": 6}
    assert told["secret.value"] == {"rotated": 5}
    encryption.configure([NEW])
    assert {name: decrypt(value) for name, value in stored(revision_id).items()} == values


def test_it_can_be_run_again(revision_id: UUID) -> None:
    store(revision_id, A="1", B="2")
    encryption.configure([NEW, OLD])
    store(revision_id, C="3")
    assert key_rotation.rotate() == {"rotated": 2, "current": 1}
    before = stored(revision_id)
    assert key_rotation.rotate() == {"current": 3}
    assert stored(revision_id) == before


def test_what_no_key_reads_is_counted_and_left(revision_id: UUID) -> None:
    store(revision_id, GOOD="1", LOST=b"of another key")
    encryption.configure([NEW, OLD])
    assert key_rotation.rotate() == {"rotated": 1, "unreadable": 1}
    assert stored(revision_id)["LOST"] == b"of another key"


def test_a_value_written_meanwhile_stays(revision_id: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    store(revision_id, A="old")
    encryption.configure([NEW, OLD])
    renew = encryption.rotate

    def while_another_writes(value: bytes) -> bytes:
        with connection() as conn:
            conn.execute(SECRET.update().values(value=encrypt("newer")))  # type: ignore[attr-defined]
        return renew(value)

    monkeypatch.setattr(encryption, "rotate", while_another_writes)
    assert key_rotation.rotate() == {"changed": 1}
    assert decrypt(stored(revision_id)["A"]) == "newer"


def test_rows_of_several_revisions_are_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_rotation, "CHUNK", 1)
    deployment_id = factories.deployment(serving=False).id
    for number in range(3):
        store(factories.revision(deployment_id, number=number + 1), A="1", B="2")
    encryption.configure([NEW, OLD])
    assert key_rotation.rotate() == {"rotated": 6}
