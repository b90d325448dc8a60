"""Encryption of stored secrets: written with the operator's first key, readable with any of the keys.

Keys are Fernet keys (32 random bytes, URL-safe base64). To rotate, the operator puts a new key first.
shared/infra/key_rotation.py then re-encrypts all stored values, so that the old key can be removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from shared.errors import RunyardError, Unavailable
from shared.setting_values import BadSetting

MASK = "********"

_cipher: MultiFernet | None = None
_first: Fernet | None = None


class Undecryptable(RunyardError):
    """A stored secret cannot be read with any of RUNYARD_ENCRYPTION_KEYS."""


def new_key() -> str:
    """Generate a key."""
    return Fernet.generate_key().decode()


def configure(keys: Sequence[str]) -> None:
    """Set the operator's keys. Raises BadSetting for an invalid key."""
    global _cipher, _first
    try:
        ciphers = [Fernet(key) for key in keys]
    except ValueError as error:
        raise BadSetting(
            "RUNYARD_ENCRYPTION_KEYS must hold keys of 32 bytes in URL-safe base64, separated by commas"
        ) from error
    _cipher, _first = (MultiFernet(ciphers), ciphers[0]) if ciphers else (None, None)


def is_configured() -> bool:
    """Return whether the operator has set keys."""
    return _cipher is not None


def encrypt(value: str) -> bytes:
    """Encrypt a value with the first key. Raises Unavailable without keys."""
    return _require().encrypt(value.encode())


def decrypt(stored: bytes) -> str:
    """Decrypt a stored value. Raises Undecryptable, and Unavailable without keys."""
    try:
        return _require().decrypt(bytes(stored)).decode()
    except InvalidToken as error:
        raise Undecryptable() from error


def rotate(stored: bytes) -> bytes:
    """Re-encrypt a stored value with the first key. Raises Undecryptable, and Unavailable without keys."""
    try:
        return _require().rotate(bytes(stored))
    except InvalidToken as error:
        raise Undecryptable() from error


def is_current(stored: bytes) -> bool:
    """Whether the stored value is encrypted with the first key."""
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
            "secrets cannot be stored: the service's operator has not set RUNYARD_ENCRYPTION_KEYS"
        )
    return _cipher
