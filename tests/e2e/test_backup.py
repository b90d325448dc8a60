"""Backup of a service under load, restored into another service with its own servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from langgraph_sdk.client import SyncLangGraphClient

from tests.support.servers import postgres_over_tcp
from tests.support.stack import Stack
from tests.support.waiting import wait_until

PROVIDER = {
    "provider_id": "restored",
    "name": "Restored",
    "client_id": "c",
    "client_secret": "s3cret",
    "auth_url": "https://auth.example/authorize",
    "token_url": "https://auth.example/token",
}


@contextmanager
def under_load(sdk: SyncLangGraphClient) -> Iterator[None]:
    """Keep creating runs on new threads within the block."""
    is_over, has_begun = threading.Event(), threading.Event()

    def load() -> None:
        while not is_over.is_set():
            thread = sdk.threads.create(metadata={"of": "load"})["thread_id"]
            sdk.runs.wait(thread, "echo", input={"text": "x"})
            has_begun.set()

    loading = threading.Thread(target=load)
    loading.start()
    has_begun.wait(60)
    try:
        yield
    finally:
        is_over.set()
        loading.join()


def attempt_of(stack: Stack, run_id: str) -> Any:
    with psycopg.connect(stack.database_url) as conn:
        return conn.execute("SELECT status, attempt FROM run WHERE run_id = %s", (run_id,)).fetchone()


def test_another_service_goes_on_with_what_was_backed_up(stack: Stack, kitchen: str, tmp_path: Path) -> None:
    key = stack.client.post("/v2/keys", json={"name": "moved", "role": "run"}).json()["key"]
    assert stack.client.post("/v2/auth/providers", json=PROVIDER).status_code == 200
    sdk = stack.sdk(kitchen, key)
    thread = sdk.threads.create()["thread_id"]
    sdk.runs.wait(thread, "echo", input={"text": "first"})
    sdk.store.put_item(["moved"], "k", {"v": 1})
    cron = sdk.crons.create("echo", schedule="0 0 1 1 *")["cron_id"]  # type: ignore[typeddict-item]
    busy = sdk.threads.create()["thread_id"]
    alive = sdk.runs.create(busy, "sleeps", input={"text": "x"}, durability="sync")["run_id"]
    wait_until(lambda: sdk.threads.get_state(busy)["next"] == ["sleep"], 60)
    phrase = tmp_path / "phrase"
    phrase.write_text("twelve or more characters")
    file = tmp_path / "moving.backup"

    with under_load(sdk):
        made = stack.cli("backup", str(file), "--passphrase-file", str(phrase), "--json", timeout=300)
    sdk.runs.cancel(busy, alive, wait=True)

    assert made.returncode == 0, made.stdout + made.stderr
    assert json.loads(made.stdout)["live_runs"] >= 1
    with (
        postgres_over_tcp(tmp_path / "own", "pass word") as url,
        _service(tmp_path / "second", url) as second,
    ):
        restored = second.cli("restore", str(file), "--passphrase-file", str(phrase), timeout=300)
        assert restored.returncode == 0, restored.stdout + restored.stderr
        second.start()
        moved = second.sdk(kitchen, key)
        assert moved.threads.get_state(thread)["values"]["log"] == ["first"]
        ended: Any = moved.runs.wait(thread, "echo", input={"text": "second"})
        assert ended["log"] == ["first", "second"]
        seen: Any = moved.runs.wait(None, "peeks", input={})
        assert seen["log"][0]["kitchen"] == "open"
        assert moved.store.get_item(["moved"], "k")["value"] == {"v": 1}
        assert [row["cron_id"] for row in moved.crons.search()].count(cron) == 1
        assert second.client.get("/v2/auth/providers/restored").json()["client_id"] == "c"
        wait_until(lambda: attempt_of(second, alive) == ("running", 2), 120, what="the run to go on")
        moved.runs.cancel(busy, alive, wait=True)
        for row in moved.threads.search(metadata={"of": "load"}, limit=100):
            wait_until(lambda row=row: moved.threads.get(row["thread_id"])["status"] == "idle", 60)
    sdk.crons.delete(cron)


@contextmanager
def _service(data_dir: Path, database_url: str) -> Iterator[Stack]:
    """Create a second service that is not started yet."""
    data_dir.mkdir()
    stack = Stack(data_dir, env={"DATABASE_URL": database_url.replace(" ", "%20")})
    try:
        yield stack
    finally:
        stack.stop()
