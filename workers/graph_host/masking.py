"""Masking of a deployment's secret values in what it says of itself: errors, log lines, traces, output of builds.

The one rule for all of these. Builders and runners make a function of it for log lines; a graph host masks the text of an
error before the error is written into an event, a record or an answer. What a graph returns or streams is the user's
data and is passed on as it is.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Set
from functools import lru_cache
from urllib.parse import quote, quote_plus

MASK = "***"
SHORTEST = 6  # characters of a secret: to mask shorter ones would leave no text readable
LONGEST = 128  # characters that are matched at once: a longer value is known by its pieces
GRAM = SHORTEST  # characters by which a text may hold a value
CHUNK = 64 * 1024  # characters of a text whose grams are kept at once
MAX_RECORD_BYTES = 8 * 1024  # of a log line: a longer one is cut, perhaps within a secret
LONGEST_CHARACTER = 4  # in bytes: lines are cut between characters
SOME, ANY = r"\\+(?!\\)", r"\\*(?!\\)"  # backslashes, as many as there are
UNCHANGED = re.compile(r"[A-Za-z0-9_.~-]+")  # what no form but base64 writes in another way


def masker(values: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces secret values in a text, in each form in which a program may print them.

    Text is looked at a line at a time, so a value of several lines is known by each of them.

    Regular expressions are compiled and tried only for values that the text may hold, and none of them takes more time
    than in proportion to the text: a runner masks the lines of all its deployments.
    """
    lines = {line.strip() for value in values for line in (value, *value.splitlines())}
    parts = sorted(
        {part for line in lines for part in _pieces(line) if len(part) >= SHORTEST}, key=len, reverse=True
    )
    if not parts:
        return lambda text: text
    by_gram, always = _grams_of(parts)

    def mask(text: str) -> str:
        held = always.union(*(by_gram[gram] for gram in _grams(text, by_gram.keys())))
        masked = text
        for part in sorted(held, key=len, reverse=True):
            masked = _pattern(part).sub(MASK, masked)
        was_cut = len(text.encode("utf-8", "replace")) > MAX_RECORD_BYTES - LONGEST_CHARACTER
        return _without_beginning(masked, parts) if was_cut else masked

    return mask


def _pieces(line: str) -> Iterator[str]:
    """A value in pieces of about the same length, so that none is too short to be masked."""
    count = -(-len(line) // LONGEST)
    for n in range(count):
        yield line[n * len(line) // count : (n + 1) * len(line) // count]


def _grams_of(parts: Iterable[str]) -> tuple[dict[str, set[str]], set[str]]:
    """Values by the grams of which every text that holds the value has one; and the values without such grams."""
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
    """Those of these grams that the text holds."""
    held: set[str] = set()
    for start in range(0, len(text), CHUNK):
        chunk = text[start : start + CHUNK + GRAM - 1]
        held |= grams & {chunk[at : at + GRAM] for at in range(len(chunk) - GRAM + 1)}
    return held


@lru_cache(maxsize=4_096)
def _pattern(part: str) -> re.Pattern[str]:
    return re.compile("|".join(dict.fromkeys(_forms(part))))


def _forms(value: str) -> Iterator[str]:
    """Patterns of a value: as it is or quoted, in an address, in base64."""
    raw = value.encode("utf-8", "surrogatepass")
    yield _quoted(value)
    yield _quoted(raw.decode("latin-1"))
    yield from (_in_address(form) for form in (quote(raw), quote(raw, safe=""), quote_plus(raw)))
    yield from map(re.escape, _base64_forms(value))


def _quoted(text: str) -> str:
    """A pattern of a text as Python and JSON quote it, perhaps several times.

    A run of backslashes is matched as a whole or not at all, and only from its start: a pattern that could divide it
    in several ways would take time in a power of its length.
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
    """A pattern of a character that follows this one; the first of a text may leave its own backslashes out."""
    if character in "'\"/":
        return f"{ANY}{character}" if before else character
    if character.isascii() and character.isprintable():
        return re.escape(character)
    names = {
        json.dumps(character)[1:-1],
        repr(character)[1:-1],
        repr(character.encode("latin-1", "replace"))[2:-1],
    }
    # after a backslash the run of them is matched already
    run = "" if before == "\\" else SOME if before else r"\\"
    bare = (name[1:] for name in sorted(names) if name.startswith("\\"))
    escapes = [run + re.escape(name).replace(r"\\", SOME) for name in bare]
    return f"(?:{'|'.join((re.escape(character), *escapes))})"


def _in_address(form: str) -> str:
    """A pattern of a percent-encoded text, whose hexadecimal digits may be small."""
    return re.sub(r"%(..)", lambda found: "%" + "".join(map(_digit, found[1])), re.escape(form))


def _digit(digit: str) -> str:
    return f"[{digit}{digit.lower()}]" if digit.isalpha() else digit


def _base64_forms(value: str) -> list[str]:
    """What a value always becomes, wherever in the encoded bytes it begins: `user:password` is encoded as a whole."""
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
    """A text that was cut off, perhaps within one of these values, whose beginning it then ends with."""
    for part in parts:
        at = text.find(part[:SHORTEST], -len(part) + 1)
        while at >= 0:
            if part.startswith(text[at:]):
                return text[:at] + MASK
            at = text.find(part[:SHORTEST], at + 1)
    return text


_mask: Callable[[str], str] = str


def configure(values: Iterable[str]) -> None:
    """Mask these values in this process from now on: a graph host belongs to one revision."""
    global _mask
    _mask = lru_cache(maxsize=4)(masker(values))  # one error is written into several events and records


def masked(text: str) -> str:
    """The text of an error without the secret values of the process's deployment."""
    return _mask(text)
