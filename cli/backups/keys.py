"""Encryption keys of a backup: named by fingerprints, and kept in it only under a passphrase."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from cli.errors import BadUsage, CommandFailed

LEAST = 12  # characters of a passphrase
COST = {"n": 2**16, "r": 8, "p": 1}  # 64 MiB and a fifth of a second for each guess


def fingerprint(key: str) -> str:
    """Tells keys apart without telling anything of them: they are 256 random bits."""
    return hashlib.sha256(base64.urlsafe_b64decode(key)).hexdigest()[:16]


def passphrase(path: Path | None) -> str | None:
    """What the file holds; raises BadUsage."""
    if path is None:
        return None
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"{path} cannot be read: {error}") from error
    if len(text) < LEAST:
        raise BadUsage(f"The passphrase in {path} has fewer than {LEAST} characters.")
    return text


def seal(keys: Sequence[str], passphrase: str) -> dict[str, Any]:
    """The keys as they are kept in a manifest."""
    salt = os.urandom(16)
    sealed = _cipher(passphrase, salt, COST).encrypt(",".join(keys).encode())
    return {"salt": salt.hex(), **COST, "sealed": sealed.decode()}


def unseal(kept: dict[str, Any], passphrase: str) -> tuple[str, ...]:
    """The keys again; raises CommandFailed for another passphrase."""
    try:
        cost = {name: int(kept[name]) for name in COST}
        opened = _cipher(passphrase, bytes.fromhex(kept["salt"]), cost).decrypt(kept["sealed"].encode())
    except InvalidToken:
        raise CommandFailed("The passphrase does not open the keys of this backup.") from None
    except (KeyError, ValueError, UnsupportedAlgorithm, MemoryError) as error:
        raise CommandFailed("The keys of this backup are damaged.") from error
    return tuple(opened.decode().split(","))


def _cipher(passphrase: str, salt: bytes, cost: dict[str, int]) -> Fernet:
    derived = Scrypt(salt=salt, length=32, **cost).derive(passphrase.encode())
    return Fernet(base64.urlsafe_b64encode(derived))
