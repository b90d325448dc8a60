"""Run user scenarios on a console page in a browser. The scenarios are in `tests/js/console`."""

from __future__ import annotations

import json
import re

import pytest
from _pytest.mark.structures import ParameterSet

from tests.support import javascript
from tests.support.javascript import CACHE, JS, chromium
from tests.support.stack import Stack

FOLDER = JS / "console"
WIDE, NARROW = 1280, 400  # pixels; narrow scenarios run in the release ring
SECONDS = 600  # for all scenarios of a file, in one browser


def rows(page: str) -> list[ParameterSet]:
    """Return one pytest parameter for each scenario of a file and each width."""
    names = re.findall(r'^scenario\(\s*"([^"]+)"', (FOLDER / f"{page}.mjs").read_text(), re.MULTILINE)
    return [
        pytest.param(f"{name} ({width})", marks=marks)
        for name in names
        for width, marks in ((WIDE, ()), (NARROW, pytest.mark.release))
    ]


def check(page: str, row: str, stack: Stack, **deployments: str) -> None:
    """Fail unless this scenario passed. `deployments` maps the names it may use to deployments."""
    javascript.check(
        row,
        "browser",
        f"console/{page}.mjs",
        stack.url,
        stack.api_key,
        seconds=SECONDS,
        WIDTH=row.rpartition("(")[2].rstrip(")"),
        CONSOLE_URL=stack.url,
        CONSOLE_KEY=stack.api_key,
        DEPLOYMENTS=json.dumps(deployments, sort_keys=True),
        ARTIFACTS=str(CACHE / "pages"),
        TMPDIR=str(chromium()),
    )
