"""Sealed texts: values that clients keep and return, but can neither read nor change.

A sealed text is encrypted with the operator's keys, which also encrypt other values. It therefore names its purpose. It
is valid for some time by the database's clock, and is not stored.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import orjson

from shared.errors import RunyardError
from shared.infra import encryption
from shared.infra.encryption import Undecryptable
from shared.infra.postgres import database_seconds, dumps


class InvalidSeal(RunyardError):
    """A text was not sealed for this purpose, was changed, or has expired."""


class SealExpired(InvalidSeal):
    """A sealed text has expired."""


def seal(purpose: str, value: Any, *, seconds: float) -> str:
    """Return a URL-safe text for a JSON value. Raises Unavailable without encryption keys or the database's time."""
    content = {"purpose": purpose, "until": database_seconds() + seconds, "value": value}
    return encryption.encrypt(dumps(content)).decode()


def unseal(purpose: str, text: str) -> Any:
    """Return the value of a sealed text. Raises InvalidSeal, and Unavailable as `seal` does."""
    if not _is_canonical(text):
        raise InvalidSeal
    try:
        content = orjson.loads(encryption.decrypt(text.encode()))
    except (Undecryptable, ValueError) as error:
        raise InvalidSeal from error
    if not isinstance(content, dict) or content.get("purpose") != purpose:
        raise InvalidSeal
    if content["until"] < database_seconds():
        raise SealExpired
    return content["value"]


def _is_canonical(text: str) -> bool:
    """Return whether the text is exactly what `seal` writes. Decoders of base64 ignore what follows the padding."""
    try:
        return urlsafe_b64encode(urlsafe_b64decode(text)).decode() == text
    except ValueError:
        return False
