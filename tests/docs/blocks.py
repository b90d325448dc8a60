"""The code blocks of a Markdown page, and what their info strings tell the test to do with them.

A fence is written as in the pages: ```` ```sh {data-needs="a cluster"} ```` or ```` ```python title="agent.py" ````.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,}) *(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=ticks) *$",
    re.MULTILINE | re.DOTALL,
)
ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
SHELL, PYTHON, JAVASCRIPT = (
    ("sh", "bash", "shell"),
    ("python", "py"),
    ("ts", "js", "typescript", "javascript"),
)
EXECUTED = (*SHELL, *PYTHON, *JAVASCRIPT)
# Languages of blocks that only show something: output, a session, a part of a file.
SHOWN = (
    "text",
    "console",
    "json",
    "jsonc",
    "http",
    "yaml",
    "toml",
    "ini",
    "sql",
    "diff",
    "nginx",
    "tsx",
    "html",
    "",
)
# What a block may need that the test does not have. Any other need fails the test.
NEEDS = {
    "a clone",
    "a cluster",
    "a CI server",
    "a collector",
    "a domain",
    "a front end",
    "a machine",
    "a model provider",
    "a person",
    "a registry",
    "a release",
    "Docker",
    "LangGraph Platform",
    "root",
}


@dataclass(frozen=True)
class Block:
    """One code block.

    title: path of the file that the block is, relative to the page's working folder.
    needs: what the block needs that a test does not have; the block is not executed.
    terminal: the block runs beside the others, as in a second terminal. An address (`http://127.0.0.1:9000/ok`) is waited for
        until it answers with success.
    fails: the reason why the block's last command is expected to fail.
    """

    page: Path
    line: int
    language: str
    text: str
    title: str | None
    needs: str | None
    terminal: str | None
    fails: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_executed(self) -> bool:
        return self.title is None and self.needs is None and self.language in EXECUTED


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page in order, also those in tabs and lists."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        attributes = dict(ATTRIBUTE.findall(match["info"]))
        language = re.match(r"[\w+-]*", match["info"].lstrip("{."))
        assert language is not None
        yield Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            language[0],
            textwrap.dedent(match["text"]),
            attributes.get("title"),
            attributes.get("data-needs"),
            attributes.get("data-terminal"),
            attributes.get("data-fails"),
        )
