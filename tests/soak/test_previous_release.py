"""The release before, whose processes go on while this one's tables are already there: its own suite, on them.

The other way round, this release on the tables of the one before, does not happen: a process waits until the database is
migrated (`shared/infra/schema.py`). What it finds there then, written by processes of before, `tests/release/test_upgrade.py` goes
on with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import previous
from tests.support.previous import PROJECT

RINGS = ("tests/contract", "tests/unit/runs", "tests/unit/threads")  # what speaks to the tables
MAKES_TABLES = "    Base.metadata.create_all(engine)\n"
MIGRATES = f"""    import os, subprocess
    subprocess.run(
        [{sys.executable!r}, "-m", "shared.migrations"],
        cwd={str(PROJECT)!r}, env={{**os.environ, "DATABASE_URL": database, "PYTHONPATH": ""}}, check=True,
    )
"""


def test_its_contract_suite_passes_on_this_releases_tables(tmp_path: Path) -> None:
    tree = tmp_path / "previous"
    shutil.copytree(previous.tree(), tree)
    conftest = tree / "tests" / "conftest.py"
    source = conftest.read_text()
    assert MAKES_TABLES in source
    conftest.write_text(source.replace(MAKES_TABLES, MIGRATES))
    web_process = tree / "tests" / "support" / "web_process.py"
    web_process.write_text(web_process.read_text().replace("timeout=30", "timeout=180"))  # beside other work

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--numprocesses", "2", "--dist", "loadscope", *RINGS],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
