"""Random tokens, of which the database stores only a hash.

At 256 random bits, guessing is hopeless, and a slow hash would protect nothing.
"""

from __future__ import annotations

import hashlib
import secrets


def new_token() -> str:
    """Generate a token of 256 random bits: 43 characters that a URL can contain, as RFC 7636 recommends for PKCE."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> bytes:
    """Return the SHA-256 of a token, by which the database finds its row."""
    return hashlib.sha256(token.encode()).digest()
