"""The console and the command line read only fields that the records of the API have, and records read no secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import LargeBinary, Table

from shared import assistants, fleet
from shared.access import api_keys, organizations
from shared.crons import records as crons
from shared.deployments.records import DEPLOYMENT, PREVIEW, REVISION
from shared.models import API_KEY, OAUTH_GRANT, OAUTH_PROVIDER
from shared.oauth import providers, tokens
from shared.records import Record
from shared.runs.read import RUN
from shared.threads import records as threads

PROJECT = Path(__file__).parents[3]
CONSOLE = {
    "run": RUN,
    "thread": threads.RECORD,
    "assistant": assistants.RECORD,
    "cron": crons.RECORD,
    "revision": REVISION,
    "worker": fleet.RECORD,
}
PLAYGROUND = {"name"}  # the console's own description of a thread also names its deployment
ROWS = {
    "deployments/deployments.py": (DEPLOYMENT, REVISION),
    "deployments/revisions.py": (REVISION,),
    "deployments/traffic.py": (PREVIEW,),
    "operating/keys.py": (api_keys.RECORD, organizations.RECORD),
    "runs/runs.py": (RUN,),
}


@pytest.mark.parametrize("name", CONSOLE)
def test_the_console_reads_only_fields_of_a_record(name: str) -> None:
    texts = [path.read_text() for path in (PROJECT / "web/static/console").rglob("*.js")]
    read = {field for text in texts for field in re.findall(rf"(?<![\w./\"'-]){name}\.(\w+)\b(?!\()", text)}
    assert read
    assert read - fields(CONSOLE[name]) - PLAYGROUND == set()


@pytest.mark.parametrize("file", ROWS)
def test_the_command_line_reads_only_fields_of_a_record(file: str) -> None:
    read = set(re.findall(r'\brow(?:\[|\.get\()"(\w+)"', (PROJECT / "cli" / file).read_text()))
    assert read
    assert read <= set().union(*map(fields, ROWS[file]))


def fields(record: Record) -> set[str]:
    return set(record.search_schema["properties"])


@pytest.mark.parametrize(
    ("record", "table"),
    [(api_keys.RECORD, API_KEY), (providers.RECORD, OAUTH_PROVIDER), (tokens.RECORD, OAUTH_GRANT)],
    ids=["key", "provider", "token"],
)
def test_a_record_reads_no_hashed_or_encrypted_column(record: Record, table: Table) -> None:
    secret = {column.name for column in table.columns if isinstance(column.type, LargeBinary)}
    assert secret
    assert secret & set(record.columns) == set()
