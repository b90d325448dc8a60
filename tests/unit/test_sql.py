"""SQL files: how statements are loaded, and which views and functions a migration installs."""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest

from shared import sql
from shared.infra.arrays import texts
from shared.infra.postgres import connection, driver
from shared.sql import Statement

PROJECT = Path(__file__).parents[2]
CALLS = {
    "name": re.compile(r"statement(?:\(|,)\s*\"(\w+\.\w+)\""),
    "part": re.compile(r"\bpart\(\s*\"(\w+\.\w+)\""),
}
FILES = sorted(sql.FOLDER.glob("*.sql"))


def names(kind: str) -> set[str]:
    return {f"{path.stem}.{name}" for path in FILES for one, name in sql.blocks(path) if one == kind}


@pytest.mark.usefixtures("db")
def test_parameters_are_named_and_everything_else_is_sent_as_written() -> None:
    statement = Statement(
        "SELECT :a || ' :a%' AS \"x\", CAST(:b AS text)::text AS y, -- it's :a\n '10%' LIKE '1%%' AS z, 7 % 4 AS m,"
        " (:list)[1:2] AS l, $$:b%$$ AS d"
    )
    expected = {"x": "1 :a%", "y": None, "z": True, "m": 3, "l": ["p", "q"], "d": ":b%"}
    with connection() as conn:
        assert statement.row(conn, a="1", b=None, list=texts(["p", "q", "r"])) == expected
    with driver() as conn:
        assert statement.rows(conn, a="1", b=None, list=texts(["p", "q", "r"])) == [expected]


def test_every_statement_and_part_is_used_and_an_unknown_one_is_an_error() -> None:
    code = "".join(
        path.read_text()
        for name in ("shared", "web", "workers", "cli")
        for path in (PROJECT / name).rglob("*.py")
    )

    for kind, call in CALLS.items():
        assert names(kind) == set(call.findall(code))
    with pytest.raises(KeyError):
        sql.statement("claim.unknown")


def test_every_installed_function_has_the_name_of_its_block_and_is_used() -> None:
    text = "".join(path.read_text() for path in FILES)
    code = "".join(
        path.read_text() for name in ("shared", "web", "workers") for path in (PROJECT / name).rglob("*.py")
    )
    words = Counter(re.findall(r"\w+", text + code))
    for name, definition in sql.installed().items():
        assert re.search(rf"^CREATE (OR REPLACE FUNCTION|VIEW) {name}\b", definition, re.MULTILINE), name
        assert words[name] > 2, f"{name} is not used"
    assert {name for name, text in sql.installed().items() if "\nCREATE VIEW" in f"\n{text}"} == set(
        sql.VIEWS
    )


def test_the_newest_migration_installs_everything(migrated: str) -> None:
    with psycopg.connect(migrated) as conn:
        found = conn.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
            " UNION SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = 'public'::regnamespace"
        )
        assert {name for (name,) in found} >= set(sql.installed())


# A change of a view or function needs a new migration, which installs it. Before the first release, the digest is updated.
DIGESTS = {
    "is_live": "c45fab7d5843",
    "is_due": "8e5dc72e0ac4",
    "waiting_since": "e6edac82cb52",
    "is_notification_lost": "5f19dd043b03",
    "unblocked_run": "d20f1ac8caab",
    "listed_deployment": "d5be2416642b",
    "bench": "93a9e8e7a9a7",
    "active_bench": "08780a38a0d8",
    "pool_load": "12c825e69583",
    "limited_deployment": "eb49bc18e0ad",
    "limited_key": "f54700514d42",
    "waiting_lanes": "24e9a9739981",
    "waiting_lanes_of": "cd52dc17dc90",
    "takes_traffic": "bb5200d97234",
    "readable": "f0317b072011",
    "served_graph": "09e6f1bd0819",
    "record_revision_end_1": "a5c2f8102412",
    "refuse_audit_change_1": "416ab97b290f",
    "runners_of_pool": "ad3899e330e0",
    "checkpoint_parts": "6b30cd6b0aac",
    "newest_checkpoint": "e6928b1ae623",
    "claim_runs_1": "d31dd1615475",
    "store_checkpoints_1": "588d8a9f1d5f",
    "commit_runs_1": "2b2ccc78d480",
    "default_thread_ttl": "7185c6a79514",
    "assistant_rows": "f31fc5ad0a09",
    "is_cron_due": "e5eea317944a",
    "ended_run_values": "2f8be9df5f6d",
    "utc_date": "5a83ef18c337",
    "token_count": "d00ae1bbfc5a",
    "tokens_by_model": "7f80a3555902",
    "replay_key": "edd49dd4d027",
    "ended_run_usage": "106e8d36cba2",
    "ended_run_detail": "c96b9461260b",
    "histogram_bucket": "2109b49afb9a",
    "histogram_of": "77dfe14035a8",
    "sum_histograms": "364b95c96339",
    "sum_ended_runs": "82ba3bcc4da9",
    "figures_since": "ea856e22d40d",
    "thread_title": "df06dcdfe315",
    "open_interrupts": "94f980b35cac",
    "named_interrupts": "b720d7a4b05d",
    "questions_of_thread": "41025af3b29b",
    "inbox_rules": "3cc90911e712",
    "key_label": "d1e0c8b86fd5",
    "record_question_end_1": "0099ba57a540",
    "record_answers_1": "4f5213eb8415",
    "update_questions_1": "bb8ae9054f6c",
    "with_lost_attempt": "846b03d747a2",
    "record_webhooks_1": "bfe6cdd5d8d6",
    "delivery_status": "f6badf18aaab",
    "thread_of_delivery": "aa2778224a79",
    "has_protocol": "12916eae5b39",
    "followed_by": "7d57c99a02a7",
    "waits_for": "afe5db48d95d",
    "a2a_task_id": "271df0d88784",
    "a2a_task": "7be99c4ec813",
}


def test_a_released_function_stays_as_it_is() -> None:
    digests = {name: sha256(text.encode()).hexdigest()[:12] for name, text in sql.installed().items()}

    assert digests == DIGESTS, (
        "the release before calls these functions. Give a changed one the next number and a new migration, and move"
        " the file of the release before to shared/sql/previous/."
    )
