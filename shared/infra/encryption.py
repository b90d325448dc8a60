"""Secrets at rest: encrypted with the first of the operator's keys, readable with any of them.

Keys are Fernet keys (32 random bytes, URL-safe base64). Rotating means putting a new key first; shared/infra/key_rotation.py
then encrypts anew what is stored, so that the old one can be put away.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from shared.errors import RunyardError, Unavailable
from shared.settings import BadSetting

MASK = "********"

_cipher: MultiFernet | None = None
_first: Fernet | None = None


class Undecryptable(RunyardError):
    """A stored secret cannot be read with any of RUNYARD_ENCRYPTION_KEYS."""


def new_key() -> str:
    """A fresh key."""
    return Fernet.generate_key().decode()


def configure(keys: Sequence[str]) -> None:
    """Take the operator's keys; raises BadSetting when one is not a key."""
    global _cipher, _first
    try:
        ciphers = [Fernet(key) for key in keys]
    except ValueError as error:
        raise BadSetting(
            "RUNYARD_ENCRYPTION_KEYS must hold keys of 32 bytes in URL-safe base64, separated by commas"
        ) from error
    _cipher, _first = (MultiFernet(ciphers), ciphers[0]) if ciphers else (None, None)


def encrypt(value: str) -> bytes:
    """The value as it is stored."""
    return _require().encrypt(value.encode())


def decrypt(stored: bytes) -> str:
    """The value behind what is stored; raises Undecryptable."""
    try:
        return _require().decrypt(bytes(stored)).decode()
    except InvalidToken as error:
        raise Undecryptable() from error


def rotate(stored: bytes) -> bytes:
    """The same value, encrypted with the first key."""
    try:
        return _require().rotate(bytes(stored))
    except InvalidToken as error:
        raise Undecryptable() from error


def is_current(stored: bytes) -> bool:
    """Whether the first key alone reads this."""
    _require()
    assert _first is not None
    try:
        _first.decrypt(bytes(stored))
    except InvalidToken:
        return False
    return True


def _require() -> MultiFernet:
    if _cipher is None:
        raise Unavailable(
            "secrets cannot be kept: the service's operator has not set RUNYARD_ENCRYPTION_KEYS"
        )
    return _cipher
