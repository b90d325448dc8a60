"""Masking of a deployment's secret values in its errors, log lines, traces and build output.

Builders and runners use `masker` for log lines. A graph host masks the text of an error before the error is written
into an event, a record or an answer. The values that a graph returns or streams are the user's data and are not masked.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Set
from functools import lru_cache
from urllib.parse import quote, quote_plus

MASK = "***"
SHORTEST = 6  # characters of a masked secret; masking shorter ones would make texts unreadable
LONGEST = 128  # characters of one pattern; a longer value is matched in pieces
GRAM = SHORTEST  # characters of the substrings that show whether a text may contain a value
CHUNK = 64 * 1024  # characters of a text whose grams are in memory at the same time
MAX_RECORD_BYTES = 8 * 1024  # of a log line; a longer line is cut, possibly within a secret
LONGEST_CHARACTER = 4  # bytes in UTF-8; lines are cut between characters
SOME, ANY = r"\\+(?!\\)", r"\\*(?!\\)"  # a whole run of backslashes, of at least one or of any length
UNCHANGED = re.compile(r"[A-Za-z0-9_.~-]+")  # characters that only base64 changes


def masker(values: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces secret values in a text, in each form in which a program may print them.

    Callers often pass single lines, so each line of a multi-line value is also masked by itself.

    A runner masks the lines of all its deployments, so masking must be fast. Regular expressions are compiled and tried
    only for values that the text may contain, and each takes time proportional to the length of the text.
    """
    lines = {line.strip() for value in values for line in (value, *value.splitlines())}
    parts = sorted(
        {part for line in lines for part in _pieces(line) if len(part) >= SHORTEST}, key=len, reverse=True
    )
    if not parts:
        return lambda text: text
    by_gram, always = _grams_of(parts)

    def mask(text: str) -> str:
        candidates = always.union(*(by_gram[gram] for gram in _grams(text, by_gram.keys())))
        masked = text
        for part in sorted(candidates, key=len, reverse=True):
            masked = _pattern(part).sub(MASK, masked)
        was_cut = len(text.encode("utf-8", "replace")) > MAX_RECORD_BYTES - LONGEST_CHARACTER
        return _without_beginning(masked, parts) if was_cut else masked

    return mask


def _pieces(line: str) -> Iterator[str]:
    """Split a value into pieces of about the same length, so that no piece is too short to be masked."""
    count = -(-len(line) // LONGEST)
    for n in range(count):
        yield line[n * len(line) // count : (n + 1) * len(line) // count]


def _grams_of(parts: Iterable[str]) -> tuple[dict[str, set[str]], set[str]]:
    """Return `(by_gram, always)`: values by their grams, and values without grams, which are always tried.

    Every text that contains a value in any form contains at least one of the value's grams.
    """
    by_gram: dict[str, set[str]] = {}
    always: set[str] = set()
    for part in parts:
        longest = max(UNCHANGED.findall(part), key=len, default="")
        if len(longest) < GRAM:
            always.add(part)
            continue
        for form in (longest, *_base64_forms(part)):
            by_gram.setdefault(form[-GRAM:], set()).add(part)
    return by_gram, always


def _grams(text: str, grams: Set[str]) -> Set[str]:
    """Return the grams that the text contains."""
    contained: set[str] = set()
    for start in range(0, len(text), CHUNK):
        chunk = text[start : start + CHUNK + GRAM - 1]
        contained |= grams & {chunk[at : at + GRAM] for at in range(len(chunk) - GRAM + 1)}
    return contained


@lru_cache(maxsize=4_096)
def _pattern(part: str) -> re.Pattern[str]:
    return re.compile("|".join(dict.fromkeys(_forms(part))))


def _forms(value: str) -> Iterator[str]:
    """Yield patterns of a value: plain or quoted, percent-encoded in a URL, and in base64."""
    raw = value.encode("utf-8", "surrogatepass")
    yield _quoted(value)
    yield _quoted(raw.decode("latin-1"))
    yield from (_in_address(form) for form in (quote(raw), quote(raw, safe=""), quote_plus(raw)))
    yield from map(re.escape, _base64_forms(value))


def _quoted(text: str) -> str:
    """Return a pattern of a text as Python and JSON quote it, possibly several times.

    A run of backslashes is matched as a whole or not at all, and only from its start. A pattern that could split the
    run in several ways would take polynomial time in its length.
    """
    patterns: list[str] = []
    before = ""
    for character in text:
        if character != "\\":
            patterns.append(_quoted_character(character, before))
        elif before != "\\":
            patterns.append(SOME if patterns else rf"(?<!\\){SOME}")
        before = character
    return "".join(patterns)


def _quoted_character(character: str, before: str) -> str:
    """Return a pattern of a character that follows `before`. The first character may match without its backslashes."""
    if character in "'\"/":
        return f"{ANY}{character}" if before else character
    if character.isascii() and character.isprintable():
        return re.escape(character)
    names = {
        json.dumps(character)[1:-1],
        repr(character)[1:-1],
        repr(character.encode("latin-1", "replace"))[2:-1],
    }
    # After a backslash, the pattern has already matched the whole run of backslashes.
    run = "" if before == "\\" else SOME if before else r"\\"
    bare = (name[1:] for name in sorted(names) if name.startswith("\\"))
    escapes = [run + re.escape(name).replace(r"\\", SOME) for name in bare]
    return f"(?:{'|'.join((re.escape(character), *escapes))})"


def _in_address(form: str) -> str:
    """Return a pattern of a percent-encoded text, with hexadecimal digits in either case."""
    return re.sub(r"%(..)", lambda match: "%" + "".join(map(_digit, match[1])), re.escape(form))


def _digit(digit: str) -> str:
    return f"[{digit}{digit.lower()}]" if digit.isalpha() else digit


def _base64_forms(value: str) -> list[str]:
    """Return the base64 texts that a value produces at each offset of the encoded bytes.

    The value may be part of a longer encoded text, such as the password in `user:password`. Only characters that do not
    depend on the neighboring bytes are included.
    """
    raw = value.encode("utf-8", "surrogatepass")
    forms: list[str] = []
    for before, first in ((0, 0), (1, 2), (2, 3)):
        last = (before + len(raw)) // 3 * 4
        padded = bytes(before) + raw
        forms += (
            encode(padded)[first:last].decode() for encode in (base64.b64encode, base64.urlsafe_b64encode)
        )
    return [form for form in dict.fromkeys(forms) if len(form) >= SHORTEST]


def _without_beginning(text: str, parts: Iterable[str]) -> str:
    """Mask the end of a text that was cut within one of these values and ends with the value's beginning."""
    for part in parts:
        at = text.find(part[:SHORTEST], -len(part) + 1)
        while at >= 0:
            if part.startswith(text[at:]):
                return text[:at] + MASK
            at = text.find(part[:SHORTEST], at + 1)
    return text


_mask: Callable[[str], str] = str


def configure(values: Iterable[str]) -> None:
    """Set the values that `masked` masks in this process. A graph host belongs to one revision."""
    global _mask
    _mask = lru_cache(maxsize=4)(masker(values))  # the same error is written into several events and records


def masked(text: str) -> str:
    """Return the text of an error with the deployment's secret values masked."""
    return _mask(text)
