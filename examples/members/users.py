"""Who can sign in, and the tokens they get. An application of yours asks its identity provider instead."""

import base64
import hashlib
import hmac
import os
import time

PASSWORDS = {"ada": "engine", "grace": "compiler"}  # of a demonstration: never keep passwords so
NAMES = {"ada": "Ada", "grace": "Grace"}
TOKEN_SECONDS = 8 * 3600


def sign_in(name: str, password: str) -> str | None:
    """A token for this user, None when the password is another."""
    expected = PASSWORDS.get(name, "")
    if not expected or not hmac.compare_digest(expected.encode(), password.encode()):
        return None
    return _signed(f"{name}.{int(time.time()) + TOKEN_SECONDS}")


def user_of(token: str) -> str | None:
    """Whose token this is, None when it is nobody's or too old."""
    content, _, _ = token.rpartition(".")
    name, _, until = content.partition(".")
    if name not in NAMES or not hmac.compare_digest(_signed(content).encode(), token.encode()):
        return None
    return name if int(until) > time.time() else None


def _signed(content: str) -> str:
    secret = os.environ.get("TOKEN_SECRET", "only for trying this out")
    digest = hmac.digest(secret.encode(), content.encode(), hashlib.sha256)
    return f"{content}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
