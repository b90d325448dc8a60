"""Encryption keys of a backup: named by fingerprints, contained only under a passphrase, and used to sign it."""

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

LEAST = 12  # characters of a passphrase
COST = {"n": 2**16, "r": 8, "p": 1}  # 64 MiB and a fifth of a second for each guess


def fingerprint(key: str) -> str:
    """Tells keys apart without telling anything of them: they are 256 random bits."""
    return hashlib.sha256(base64.urlsafe_b64decode(key)).hexdigest()[:16]


def passphrase(path: Path | None) -> str | None:
    """Read a passphrase from a file. Raises BadUsage."""
    if path is None:
        return None
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"{path} cannot be read: {error}") from error
    if len(text) < LEAST:
        raise BadUsage(f"The passphrase in {path} has fewer than {LEAST} characters.")
    return text


def signature(manifest: bytes, key: str) -> bytes:
    """HMAC-SHA256 of a manifest, under a key derived from an encryption key for this purpose only."""
    derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"runyard: signature of a backup's manifest")
    return hmac.digest(derive.derive(base64.urlsafe_b64decode(key)), manifest, hashlib.sha256)


def seal(keys: Sequence[str], passphrase: str) -> dict[str, Any]:
    """Encrypt the keys for a manifest."""
    salt = os.urandom(16)
    sealed = _cipher(passphrase, salt).encrypt(",".join(keys).encode())
    return {"salt": salt.hex(), "sealed": sealed.decode()}


def unseal(sealed_keys: dict[str, Any], passphrase: str) -> tuple[str, ...]:
    """Decrypt the keys of a manifest. Raises CommandFailed for a wrong passphrase or changed keys."""
    cipher = _cipher(passphrase, bytes.fromhex(sealed_keys["salt"]))
    try:
        opened = cipher.decrypt(sealed_keys["sealed"].encode()).decode().split(",")
    except InvalidToken:
        raise CommandFailed("The passphrase does not open the keys of this backup.") from None
    return tuple(opened)


def of_backup(own: Settings, sealed_keys: dict[str, Any] | None, passphrase: str | None) -> tuple[str, ...]:
    """Return the service's keys and, unless settings name them, those of the backup. Raises CommandFailed."""
    if own.encryption_keys:
        return own.encryption_keys
    path = embedded.key_file(own.data_dir)
    known = local.encryption_keys(own) if path.is_file() else ()
    if passphrase is not None:
        if sealed_keys is None:
            raise BadUsage("The backup has no keys that a passphrase opens: leave --passphrase-file out.")
        known += tuple(key for key in unseal(sealed_keys, passphrase) if key not in known)
    if not known:
        opens = (
            "--passphrase-file opens those in the backup"
            if sealed_keys is not None
            else "they are not in the backup"
        )
        raise CommandFailed(
            f"There are no encryption keys, which also authenticate the backup: set RUNYARD_ENCRYPTION_KEYS, or put"
            f" them into {path}; {opens}."
        )
    return known


def _cipher(passphrase: str, salt: bytes) -> Fernet:
    derived = Scrypt(salt=salt, length=32, **COST).derive(passphrase.encode())
    return Fernet(base64.urlsafe_b64encode(derived))
