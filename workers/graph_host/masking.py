"""Masking of a deployment's secret values in what it says of itself: errors, log lines, traces, output of builds.

The one rule for all of these. Builders and runners make a function of it for log lines; a graph host masks the text of an
error before the error is written into an event, a record or an answer. What a graph returns or streams is the user's
data and is passed on as it is.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from urllib.parse import quote, quote_plus

MASK = "***"
SHORTEST = 6  # characters of a secret: to mask shorter ones would leave no text readable
MAX_RECORD_BYTES = 8 * 1024  # of a log line: a longer one is cut, perhaps within a secret
LONGEST_CHARACTER = 4  # in bytes: lines are cut between characters


def masker(values: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces secret values in a text, in each form in which a program may print them.

    Text is looked at a line at a time, so a value of several lines is known by each of them.
    """
    parts = {part.strip() for value in values for part in (value, *value.splitlines())}
    hidden = sorted((part for part in parts if len(part) >= SHORTEST), key=len, reverse=True)
    if not hidden:
        return lambda text: text
    pattern = re.compile("|".join(dict.fromkeys(form for part in hidden for form in _forms(part))))

    def mask(text: str) -> str:
        masked = pattern.sub(MASK, text)
        was_cut = len(text.encode("utf-8", "replace")) > MAX_RECORD_BYTES - LONGEST_CHARACTER
        return _without_beginning(masked, hidden) if was_cut else masked

    return mask


def _forms(value: str) -> Iterator[str]:
    """Patterns of a value: as it is or quoted, in an address, in base64."""
    raw = value.encode("utf-8", "surrogatepass")
    yield "".join(map(_quoted, value))
    yield "".join(_quoted(chr(byte)) for byte in raw)
    yield from (_in_address(form) for form in (quote(raw), quote(raw, safe=""), quote_plus(raw)))
    yield from (re.escape(form) for form in _in_base64(raw) if len(form) >= SHORTEST)


def _quoted(character: str) -> str:
    """A pattern of a character as Python and JSON quote it, in a text that may have been quoted several times."""
    if character == "\\":
        return r"\\+"
    if character in "'\"/":
        return rf"\\*{character}"
    if character.isascii() and character.isprintable():
        return re.escape(character)
    names = {
        json.dumps(character)[1:-1],
        repr(character)[1:-1],
        repr(character.encode("latin-1", "replace"))[2:-1],
    }
    escapes = [re.escape(name).replace(r"\\", r"\\+") for name in sorted(names) if name.startswith("\\")]
    return f"(?:{'|'.join((re.escape(character), *escapes))})"


def _in_address(form: str) -> str:
    """A pattern of a quoted text, whose hexadecimal digits may be small."""
    return re.sub(r"%(..)", lambda found: f"%(?:{found[1]}|{found[1].lower()})", re.escape(form))


def _in_base64(raw: bytes) -> Iterator[str]:
    """What a value always becomes, wherever in the encoded bytes it begins: `user:password` is encoded as a whole."""
    for before, first in ((0, 0), (1, 2), (2, 3)):
        last = (before + len(raw)) // 3 * 4
        padded = bytes(before) + raw
        yield base64.b64encode(padded)[first:last].decode()
        yield base64.urlsafe_b64encode(padded)[first:last].decode()


def _without_beginning(text: str, hidden: Sequence[str]) -> str:
    """A text that was cut off, perhaps within one of these values, whose beginning it then ends with."""
    for value in hidden:
        for length in range(min(len(value) - 1, len(text)), SHORTEST - 1, -1):
            if text.endswith(value[:length]):
                return text[:-length] + MASK
    return text


_mask: Callable[[str], str] = str


def configure(values: Iterable[str]) -> None:
    """Mask these values in this process from now on: a graph host belongs to one revision."""
    global _mask
    _mask = masker(values)


def masked(text: str) -> str:
    """The text of an error without the secret values of the process's deployment."""
    return _mask(text)
