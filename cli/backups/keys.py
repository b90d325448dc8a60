"""Encryption keys of a backup.

The keys sign a backup, and its manifest names them by fingerprints. A backup contains the keys themselves only if they
are sealed with a passphrase.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from cli.errors import BadUsage, CommandFailed
from cli.machine import embedded, local
from shared.settings import Settings

MIN_CHARACTERS = 12  # of a passphrase
COST = {"n": 2**16, "r": 8, "p": 1}  # each guess of a passphrase costs 64 MiB and 0.2 seconds


def fingerprint(key: str) -> str:
    """Return a name of a key that reveals nothing about it: a hash cannot be inverted for 256 random bits."""
    return hashlib.sha256(base64.urlsafe_b64decode(key)).hexdigest()[:16]


def passphrase(path: Path | None) -> str | None:
    """Read a passphrase from a file. Returns None without a path. Raises BadUsage."""
    if path is None:
        return None
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"{path} cannot be read: {error}") from error
    if len(text) < MIN_CHARACTERS:
        raise BadUsage(f"The passphrase in {path} has fewer than {MIN_CHARACTERS} characters.")
    return text


def signature(manifest: bytes, key: str) -> bytes:
    """HMAC-SHA256 of a manifest, under a key derived from an encryption key for this purpose only."""
    derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"runyard: signature of a backup's manifest")
    return hmac.digest(derive.derive(base64.urlsafe_b64decode(key)), manifest, hashlib.sha256)


def seal(keys: Sequence[str], passphrase: str) -> dict[str, Any]:
    """Encrypt the keys with a passphrase. Returns the value of the manifest's field `sealed_keys`."""
    salt = os.urandom(16)
    sealed = _cipher(passphrase, salt).encrypt(",".join(keys).encode())
    return {"salt": salt.hex(), "sealed": sealed.decode()}


def unseal(sealed_keys: dict[str, Any], passphrase: str) -> tuple[str, ...]:
    """Decrypt the keys of a manifest. Raises CommandFailed for a wrong passphrase or changed keys."""
    cipher = _cipher(passphrase, bytes.fromhex(sealed_keys["salt"]))
    try:
        return tuple(cipher.decrypt(sealed_keys["sealed"].encode()).decode().split(","))
    except InvalidToken:
        raise CommandFailed("The passphrase does not open the keys of this backup.") from None


def of_backup(
    settings: Settings, sealed_keys: dict[str, Any] | None, passphrase: str | None
) -> tuple[str, ...]:
    """Return the encryption keys for reading a backup. Raises CommandFailed if there are none.

    RUNYARD_ENCRYPTION_KEYS takes precedence. Otherwise they are the keys in the data directory and, with a passphrase,
    those sealed in the backup.
    """
    if settings.encryption_keys:
        return settings.encryption_keys
    path = embedded.key_file(settings.data_dir)
    known = local.encryption_keys(settings) if path.is_file() else ()
    if passphrase is not None:
        if sealed_keys is None:
            raise BadUsage("The backup has no keys that a passphrase opens: leave --passphrase-file out.")
        known += tuple(key for key in unseal(sealed_keys, passphrase) if key not in known)
    if not known:
        are_sealed = sealed_keys is not None
        opens = "--passphrase-file opens those in the backup" if are_sealed else "they are not in the backup"
        raise CommandFailed(
            f"There are no encryption keys, which also authenticate the backup: set RUNYARD_ENCRYPTION_KEYS, or put"
            f" them into {path}; {opens}."
        )
    return known


def _cipher(passphrase: str, salt: bytes) -> Fernet:
    derived = Scrypt(salt=salt, length=32, **COST).derive(passphrase.encode())
    return Fernet(base64.urlsafe_b64encode(derived))
