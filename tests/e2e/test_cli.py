"""The `runyard` command: a project from `new` to a rollback, and `dev` with the unmodified SDK."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from langgraph_sdk import get_sync_client

from tests.support import namesakes, one_file
from tests.support.stack import Stack, free_port
from tests.support.waiting import wait_until

AGENT = """
import os
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

class State(TypedDict, total=False):
    ask: bool
    said: str

def speak(state: State):
    print("speaking")
    if state.get("ask"):
        return {{"said": interrupt("Who?")}}
    return {{"said": "{word} " + os.environ.get("WHO", "-")}}

graph = StateGraph(State).add_node(speak).add_edge(START, "speak").compile()
"""
START_SECONDS = 60


def write(folder: Path, word: str) -> Path:
    return one_file.write(folder, AGENT.format(word=word))


def last_json(ran: subprocess.CompletedProcess[str]) -> Any:
    assert ran.stderr == "" or ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_project_goes_all_the_way(stack: Stack, tmp_path: Path) -> None:
    folder = write(tmp_path / "Way Out", "one")
    (folder / ".env").write_text("WHO=Ada\n")

    first = last_json(stack.cli("deploy", str(folder), "--json", timeout=120))

    assert (first["status"], first["name"]) == ("succeeded", "way-out")
    assert first["url"] == f"{stack.url}/d/way-out"
    ran = stack.runyard("run", "way-out", "{}", "--json")
    values = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {"event": "updates", "data": {"speak": {"said": "one Ada"}}} in values

    write(folder, "two")
    second = stack.runyard("deploy", str(folder))
    assert second.returncode == 0, second.stderr
    assert "Updating the deployment way-out" in second.stdout
    assert "loading 1 graph" in second.stdout
    assert '"two Ada"' in stack.runyard("run", "way-out", "{}").stdout

    back = last_json(stack.runyard("rollback", "way-out", "--json"))
    assert back["status"] == "succeeded"
    assert '"one Ada"' in stack.runyard("run", "way-out", "{}").stdout
    shown = json.loads(stack.runyard("status", "way-out", "--json").stdout)
    assert shown["active_revision_id"] == back["revision_id"]
    assert [row["status"] for row in shown["revisions"]] == ["DEPLOYED"] * 3

    asked = last_json(stack.runyard("run", "way-out", '{"ask": true}', "--json"))["data"]
    assert [question["value"] for question in asked["interrupts"]] == ["Who?"]
    answered = stack.runyard("run", "way-out", "--thread", asked["thread_id"], "--resume", "Grace")
    assert '{"said": "Grace"}' in answered.stdout
    wait_until(lambda: "speaking" in stack.runyard("logs", "way-out").stdout, 15, what="the graph's output")
    assert "deployed at" in stack.runyard("logs", "way-out", "--type", "build").stdout

    assert "way-out" in stack.runyard("list").stdout
    assert stack.runyard("delete", "way-out", "--force").returncode == 0
    assert "way-out" not in stack.runyard("list").stdout


@dataclass
class Dev:
    """A running `runyard dev`."""

    folder: Path
    url: str
    log: Path

    def says(self) -> Any:
        """Run the graph with the SDK, without a path in the address and without a key. Returns its answer."""
        client = get_sync_client(url=self.url, api_key=None)
        thread = client.threads.create()
        parts = list(client.runs.stream(thread["thread_id"], "agent", input={}, stream_mode="values"))
        return parts[-1].data.get("said")

    def shows(self, text: str) -> bool:
        return text in self.log.read_text()


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    folder, port = write(tmp_path / "My Agent", "one"), free_port()
    (folder / ".env").write_text("WHO=Ada\n")
    namesakes.write(folder)
    log = tmp_path / "dev.log"
    environment = Stack(tmp_path / "unused").environment
    environment |= {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/another", "RUNYARD_PORT": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [namesakes.RUNYARD, "dev", "--port", str(port)],
            cwd=folder,
            env=namesakes.among(environment, folder),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Dev(folder, f"http://127.0.0.1:{port}", log)
    try:
        wait_until(lambda: process.poll() is not None or running.shows("Ctrl-C stops it"), START_SECONDS)
        assert process.poll() is None, log.read_text()
        yield running
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 0, log.read_text()
        _, left = psutil.wait_procs(family, timeout=5)
        assert not left
        assert not running.shows(namesakes.LOADED)
    finally:
        if process.poll() is None:  # the test failed: show why
            print(log.read_text()[-8000:])
            os.kill(process.pid, signal.SIGKILL)


def test_dev_serves_a_project_at_its_root_and_follows_its_files(dev: Dev) -> None:
    assert dev.says() == "one Ada"
    assert httpx.get(f"{dev.url}/docs").status_code == 200
    assert httpx.get(f"{dev.url}/v2/deployments").status_code == 200
    assert httpx.delete(f"{dev.url}/v2/deployments").status_code == 401
    wait_until(lambda: dev.shows("my-agent │ speaking"), 15, what="what the graph printed")

    (dev.folder / ".env").write_text("WHO=Grace\n")
    write(dev.folder, "two")
    wait_until(lambda: dev.shows("serves the change"), START_SECONDS)
    wait_until(lambda: dev.says() == "two Grace", START_SECONDS, what="the new code with the new variable")

    (dev.folder / "agent.py").write_text("import no_such_module\n")
    wait_until(lambda: dev.shows("The last version goes on serving"), START_SECONDS)
    assert dev.shows("no_such_module")
    assert dev.says() == "two Grace"

    # In the project's folder, the other commands find the service and its key without options.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNYARD_")}
    shown = subprocess.run(
        [namesakes.RUNYARD, "status"],
        cwd=dev.folder,
        env=environment | {"PYTHONPATH": str(dev.folder)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert dev.url in shown.stdout
