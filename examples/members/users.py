"""Users and their tokens. A real application uses its identity provider instead."""

import base64
import hashlib
import hmac
import os
import time

PASSWORDS = {"ada": "engine", "grace": "compiler"}  # for demonstration: never store plain-text passwords
NAMES = {"ada": "Ada", "grace": "Grace"}
TOKEN_SECONDS = 8 * 3600


def sign_in(name: str, password: str) -> str | None:
    """Return a token for this user, or None if the name or password is wrong."""
    expected = PASSWORDS.get(name, "")
    if not expected or not hmac.compare_digest(expected.encode(), password.encode()):
        return None
    return _signed(f"{name}.{int(time.time()) + TOKEN_SECONDS}")


def user_of(token: str) -> str | None:
    """Return the user whose token this is, or None if it is invalid or expired."""
    content, _, _ = token.rpartition(".")
    name, _, until = content.partition(".")
    if name not in NAMES or not hmac.compare_digest(_signed(content).encode(), token.encode()):
        return None
    return name if int(until) > time.time() else None


def _signed(content: str) -> str:
    secret = os.environ.get("TOKEN_SECRET", "only for trying this out")
    digest = hmac.digest(secret.encode(), content.encode(), hashlib.sha256)
    return f"{content}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
