"""Generate docs/settings.md from shared/settings.py. Run by `make docs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from shared.setting_values import Audience
from shared.settings import Settings

PAGE = Path(__file__).with_suffix(".md")
TEXT = """\
# Settings

*For operators. Written by `make docs` from `shared/settings.py`.*

Settings are environment variables, read once when a process starts. A value that cannot be used stops the start and
names the variable. Each can come from a file instead: `RUNYARD_API_KEY_FILE=/run/secrets/key` stands for its content.

{operator}

Builds also see, where they are set, what it takes to reach a package index from here: `HTTP_PROXY`, `HTTPS_PROXY`,
`NO_PROXY`, `PIP_INDEX_URL`, `PIP_EXTRA_INDEX_URL`, `UV_INDEX_URL`, `UV_DEFAULT_INDEX`, `UV_EXTRA_INDEX_URL`,
`UV_INDEX`, `UV_FIND_LINKS`, `UV_NATIVE_TLS`, `UV_SYSTEM_CERTS`, and the certificates of `SSL_CERT_FILE`, `SSL_CERT_DIR`,
`REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE` and `PIP_CERT`: see [A private authority](operating.md#a-private-authority). Nothing else of the environment is passed on.

## Expert settings

The defaults suit every installation that is known: change one only when a log line, `runyard doctor` or a page of these
docs names it.

{expert}
"""


def page() -> str:
    """Return the whole page, without the settings that `runyard dev` sets for its own processes."""
    return TEXT.format(operator=_table(Audience.OPERATOR), expert=_table(Audience.EXPERT))


def _table(audience: Audience) -> str:
    rows = [
        f"| `{spec.metadata['variable']}` | {spec.metadata['shown'] or shown(spec.default)} | {_meaning(spec.metadata)} |"
        for spec in fields(Settings)
        if spec.metadata.get("audience") is audience
    ]
    return "\n".join(("| Variable | Default | Meaning |", "|---|---|---|", *rows))


def _meaning(declared: Mapping[str, Any]) -> str:
    """Return the meaning of a setting, with the variable's old name if it has one."""
    old_name = declared["old_name"]
    return declared["meaning"] + (f"; `{old_name}`, its old name, is accepted" if old_name else "")


def shown(default: Any) -> str:
    """Return a default in Markdown, in the form that an operator would write; empty if there is none."""
    if isinstance(default, tuple):
        default = ",".join(default)
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return "" if default in (None, "") else f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(page())
