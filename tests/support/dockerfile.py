"""Parse a Dockerfile and a .dockerignore, as far as this repository's files need."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    word: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


@dataclass
class Stage:
    base: str
    name: str | None
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.word == word]

    @property
    def variables(self) -> dict[str, str]:
        """Variables set by ENV, and the defaults of ARG."""
        given = [
            part.partition("=")
            for found in self.instructions
            if found.word in ("ARG", "ENV")
            for part in found.words
        ]
        return {name: value for name, _, value in given}

    @property
    def copied(self) -> list[tuple[str, str]]:
        """`(source, target)` of each COPY from the build context. Excludes COPY from other stages."""
        own = [found.words for found in self.all("COPY") if not found.text.startswith("--from")]
        return [(source, words[-1]) for words in own for source in words[:-1]]


def read(path: Path) -> tuple[dict[str, str], list[Stage]]:
    """Return the arguments before the first stage, and the stages."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(Stage(base, name or None))
        elif word and stages:
            stages[-1].instructions.append(Instruction(word, rest.strip()))
        elif word:
            name, _, value = rest.partition("=")
            arguments[name] = value
    return arguments, stages


def lets_through(patterns: Iterable[str], path: str) -> bool:
    """Return whether the last pattern that matches the path, or one of its parent folders, includes it."""
    passes = True
    parts = path.split("/")
    places = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for line in patterns:
        pattern = line.strip().removeprefix("!").strip("/")
        if not pattern or line.startswith("#"):
            continue
        hit = re.compile(re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*"))
        if any(hit.fullmatch(place) for place in places):
            passes = line.startswith("!")
    return passes
