"""Findings of `runyard doctor`, and the masking of passwords in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN = "***"
SHORTEST_MASKED = 2  # characters; masking every occurrence of a single character would destroy the text


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILS = "fails"


@dataclass(frozen=True)
class Finding:
    """The result of one check, printed as one line."""

    name: str
    state: State
    found: str
    advice: str = ""  # one sentence on what to do; empty if nothing is to be done


def ok(name: str, found: str) -> Finding:
    return Finding(name, State.OK, found)


def warning(name: str, found: str, advice: str) -> Finding:
    return Finding(name, State.WARNING, found, advice)


def fails(name: str, found: str, advice: str) -> Finding:
    return Finding(name, State.FAILS, found, advice)


class UnreadableAddress(ValueError):
    """The value of a variable is not a valid address; the message never quotes the value."""


def check_address(url: str, schemes: tuple[str, ...]) -> None:
    """Raise UnreadableAddress for an invalid address. A driver's own error would quote it, including the password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UnreadableAddress from error
    if parts.scheme not in schemes or (port is not None and not 0 < port < 65536):
        raise UnreadableAddress


def masked(text: str, url: str) -> str:
    """Return a driver's error text as one line, with every part of the address's password masked."""
    line = " ".join(text.split())
    for secret in sorted(_secrets(url), key=len, reverse=True):
        line = line.replace(secret, HIDDEN)
    return line


def _secrets(url: str) -> set[str]:
    """Return the passwords of an address and their parts.

    A driver may take a part of a password that holds an unescaped @ or / for the host name and quote it in an error.
    """
    secrets = {value for name, value in parse_qsl(urlsplit(url).query) if "password" in name.lower()}
    if match := re.search(r"://[^:@/]*:(.*)@", url):
        secrets |= {match[1], unquote(match[1]), *re.split(r"[@:/?#]", match[1])}
    return {secret for secret in secrets if len(secret) >= SHORTEST_MASKED}
