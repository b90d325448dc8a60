"""Secrets at rest: unreadable without a key, readable with any of the operator's keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Unavailable
from shared.infra import encryption
from shared.infra.encryption import Undecryptable, decrypt, encrypt, new_key, rotate
from shared.setting_values import BadSetting


@pytest.fixture(autouse=True)
def own_keys() -> Iterator[None]:
    """Use a new key, and restore the process's keys afterwards."""
    before = encryption._cipher, encryption._first
    encryption.configure([new_key()])
    yield
    encryption._cipher, encryption._first = before


@given(value=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_value_comes_back_as_it_was(value: str) -> None:
    assert decrypt(encrypt(value)) == value


def test_what_is_stored_reveals_nothing_and_a_changed_byte_is_noticed() -> None:
    stored = encrypt("s3cret-value")

    assert b"s3cret-value" not in stored
    assert encrypt("s3cret-value") != stored, "the same value twice must not look the same"

    changed = bytearray(encrypt("whole"))
    changed[len(changed) // 2] ^= 1

    with pytest.raises(Undecryptable):
        decrypt(bytes(changed))


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    old, new = new_key(), new_key()
    encryption.configure([old])
    stored = encrypt("kept")

    encryption.configure([new, old])
    assert decrypt(stored) == "kept"
    rotated = rotate(stored)

    encryption.configure([new])
    assert decrypt(rotated) == "kept"
    with pytest.raises(Undecryptable):
        decrypt(stored)

    encryption.configure([])

    with pytest.raises(Unavailable, match="RUNYARD_ENCRYPTION_KEYS"):
        encrypt("anything")


@pytest.mark.parametrize(
    "stored",
    [b"", b"nonsense", encryption.Fernet(new_key()).encrypt(b"foreign")],
    ids=["empty", "nonsense", "foreign"],
)
def test_what_no_key_opens_is_an_error(stored: bytes) -> None:
    with pytest.raises(Undecryptable):
        decrypt(stored)
    with pytest.raises(Undecryptable):
        rotate(stored)


@pytest.mark.parametrize("key", ["short", "", "ä" * 44, "A" * 44 + "!"])
def test_what_is_no_key_stops_the_start(key: str) -> None:
    with pytest.raises(BadSetting, match="RUNYARD_ENCRYPTION_KEYS"):
        encryption.configure([key])
