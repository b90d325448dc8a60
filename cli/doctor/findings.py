"""What a check has found: its name, its state, what is there, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN = "***"
SHORTEST_MASKED = 2  # characters of a part of a password: to mask single ones would leave no sentence


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILS = "fails"


@dataclass(frozen=True)
class Finding:
    """One line of the screen."""

    name: str
    state: State
    found: str
    advice: str = ""  # one sentence on what to do, where there is something to do

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def ok(name: str, found: str) -> Finding:
    return Finding(name, State.OK, found)


def warning(name: str, found: str, advice: str) -> Finding:
    return Finding(name, State.WARNING, found, advice)


def fails(name: str, found: str, advice: str) -> Finding:
    return Finding(name, State.FAILS, found, advice)


class UnreadableAddress(ValueError):
    """The value of a variable is no address; the message never quotes it."""


def check_address(url: str, schemes: tuple[str, ...]) -> None:
    """Raises UnreadableAddress: what a driver would say of such a value quotes it, with its password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UnreadableAddress from error
    if parts.scheme not in schemes or (port is not None and not 0 < port < 65536):
        raise UnreadableAddress


def masked(text: str, url: str) -> str:
    """One line of a driver's text without any part of the password that stands in the address."""
    line = " ".join(text.split())
    for secret in sorted(_secrets(url), key=len, reverse=True):
        line = line.replace(secret, HIDDEN)
    return line


def _secrets(url: str) -> set[str]:
    """The passwords of an address, and their parts: with an @ or a / in it a driver may take one for a host's name."""
    found = {value for name, value in parse_qsl(urlsplit(url).query) if "password" in name.lower()}
    if written := re.search(r"://[^:@/]*:(.*)@", url):
        found |= {written[1], unquote(written[1]), *re.split(r"[@:/?#]", written[1])}
    return {secret for secret in found if len(secret) >= SHORTEST_MASKED}
