"""Writes docs/settings.md from shared/settings.py: `make docs`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from shared.settings import Settings

PAGE = Path(__file__).with_suffix(".md")
TEXT = """\
# Settings

*For whoever installs and runs the service. Written by `make docs` from `shared/settings.py`.*

Settings are environment variables, read once when a process starts. A value that cannot be used stops the start and
names the variable. Each can come from a file instead: `RUNYARD_API_KEY_FILE=/run/secrets/key` stands for its content.

| Variable | Default | Meaning |
|---|---|---|
{rows}

Builds also see, where they are set, what it takes to reach a package index from here: `HTTP_PROXY`, `HTTPS_PROXY`,
`NO_PROXY`, `PIP_INDEX_URL`, `PIP_EXTRA_INDEX_URL`, `UV_INDEX_URL`, `UV_DEFAULT_INDEX`, `UV_EXTRA_INDEX_URL`,
`UV_INDEX`, `UV_FIND_LINKS`, `UV_NATIVE_TLS`, and the certificates of `SSL_CERT_FILE`, `SSL_CERT_DIR`,
`REQUESTS_CA_BUNDLE` and `CURL_CA_BUNDLE`. Nothing else of the environment is passed on.
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| `{spec.metadata['variable']}` | {spec.metadata['shown'] or shown(spec.default)} | {spec.metadata['meaning']} |"
        for spec in fields(Settings)
        if "variable" in spec.metadata
    ]
    return TEXT.format(rows="\n".join(rows))


def shown(default: Any) -> str:
    """A default as an operator would write it; empty for none."""
    if isinstance(default, tuple):
        default = ",".join(default)
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return "" if default in (None, "") else f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(page())
