"""Revisions over the API: live status, rollback, skipped and interrupted revisions."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil

from tests.support import one_file
from tests.support.receiver import receiving
from tests.support.stack import Stack
from tests.support.waiting import wait_until

GRAPH = """
from typing import TypedDict
from langgraph.graph import StateGraph

class State(TypedDict, total=False):
    said: str

def speak(state):
    return {"said": %s}

graph = StateGraph(State).add_node("speak", speak).add_edge("__start__", "speak").compile()
"""
ENDS = ("DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED")
BUILD_SECONDS = 90


def project(said: str = "'one'", **config: Any) -> dict[str, str]:
    """Return the smallest project that serves a graph. `said` is a Python expression."""
    return one_file.files(GRAPH % said, **config)


def archive(files: Mapping[str, str]) -> bytes:
    """Pack the files. Equal files give equal bytes, so that an earlier build is reused."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


@dataclass
class App:
    """A deployment, used through the API like the deploy command does."""

    stack: Stack
    secrets: list[dict[str, str]] = field(default_factory=list)
    name: str = field(default_factory=lambda: f"app-{uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        body = {
            "name": self.name,
            "source": "internal_source",
            "source_config": {"deployment_type": "dev_zero"},
            "source_revision_config": {},
            "secrets": self.secrets,
        }
        self.id = self.call("POST", "/v2/deployments", json=body)["id"]

    def call(self, method: str, path: str, **options: Any) -> Any:
        answer = self.stack.client.request(method, path, **options)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def push(self, files: Mapping[str, str], *, preview: str | None = None, **body: Any) -> str:
        """Upload and deploy the files, as a preview if named. Returns the revision's id."""
        place = self.call("POST", f"/v2/deployments/{self.id}/upload-url", json={})
        headers = {"Content-Type": "application/gzip", **place.get("upload_headers", {})}
        assert httpx.put(place["upload_url"], content=archive(files), headers=headers).is_success
        content = {"source_tarball_path": place["object_path"], "langgraph_config_path": "langgraph.json"}
        change = {"revision_source": "internal_source", "source_revision_config": content, **body}
        if preview is not None:
            sent = {**change, "preview": preview}
            return str(self.call("POST", f"/v2/deployments/{self.id}/revisions", json=sent)["id"])
        return str(self.call("PATCH", f"/v2/deployments/{self.id}", json=change)["latest_revision_id"])

    def record(self) -> Any:
        return self.call("GET", f"/v2/deployments/{self.id}")

    def revision(self, id: str) -> Any:
        return self.call("GET", f"/v2/deployments/{self.id}/revisions/{id}")

    def ended(self, id: str) -> Any:
        """Wait until the revision has ended and return its record."""
        wait_until(
            lambda: self.revision(id)["status"] in ENDS,
            BUILD_SECONDS,
            what=f"revision {id} of {self.name} to end",
        )
        return self.revision(id)

    def build_log(self, id: str) -> str:
        body = {"order": "asc", "limit": 1000}
        answer = self.call("POST", f"/v1/projects/{self.id}/revisions/{id}/build_logs", json=body)
        return "\n".join(line["message"] for line in answer["logs"])

    def deploy_log(self) -> str:
        """Return the error lines of the deployment log, which are stored a moment after they are written."""
        answer = self.call(
            "POST", f"/v1/projects/{self.id}/deploy_logs", json={"limit": 1000, "level": "ERROR"}
        )
        return "\n".join(line["message"] for line in answer["logs"])

    def deployed(self, files: Mapping[str, str], **options: Any) -> str:
        id = self.push(files, **options)
        record = self.ended(id)
        assert record["status"] == "DEPLOYED", f"{record['status_message']}\n{self.build_log(id)}"
        return id

    def says(self) -> Any:
        return self.stack.sdk(self.name).runs.wait(None, "agent", input={})["said"]


def waited_for(stack: Stack, path: str) -> list[Any]:
    """Long-poll the revision until it ends and return every record received."""
    seen: list[Any] = []
    tag = ""
    while not seen or seen[-1]["status"] not in ENDS:
        headers = {"If-None-Match": tag} if tag else {}
        answer = stack.client.get(path, params={"wait": 25}, headers=headers, timeout=BUILD_SECONDS)
        tag = answer.headers["ETag"]
        if answer.status_code != httpx.codes.NOT_MODIFIED:
            assert answer.is_success, answer.text
            seen.append(answer.json())
    return seen


def events(stack: Stack, path: str, **headers: str) -> list[tuple[str, str, Any]]:
    """Return `(id, name, data)` of each event of a revision's stream, which ends with the revision."""
    with httpx.Client(headers=stack.client.headers, timeout=BUILD_SECONDS) as client:
        answer = client.get(f"{stack.url}{path}/stream", headers=headers)
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        for block in answer.text.split("\r\n\r\n")
    ]
    return [(fields["id"], fields["event"], json.loads(fields["data"])) for fields in blocks if fields]


def test_a_build_is_streamed_live_and_its_graph_sees_the_variables_of_secrets_and_configuration(
    stack: Stack,
) -> None:
    app = App(
        stack, secrets=[{"name": "TOKEN", "value": "s3cret-token"}, {"name": "BOTH", "value": "secret"}]
    )
    said = (
        "'|'.join(__import__('os').environ.get(n, '-') for n in ('TOKEN', 'PLAIN', 'BOTH', 'DATABASE_URL'))"
    )
    files = project(said, env={"PLAIN": "given", "BOTH": "configured"})
    files["agent.py"] += "\nimport os\nprint('the token is', os.environ['TOKEN'])\n"
    id = app.push(files)
    path = f"/v2/deployments/{app.id}/revisions/{id}"

    # Both ways to wait see the build from its first status to its end.
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(events, stack, path)
        records = waited_for(stack, path)
        seen = reading.result(BUILD_SECONDS)

    assert records[-1]["status"] == "DEPLOYED"
    assert len({record["updated_at"] + record["status"] for record in records}) == len(records)
    told = [data["status"] for _, name, data in seen if name == "status"]
    wanted = ["AWAITING_BUILD", "BUILDING", "AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED"]
    assert [status for status in told if status in wanted] == wanted
    live = [data["message"] for _, name, data in seen if name == "log"]
    assert "\n".join(live) == app.build_log(id)
    assert "the token is ***" in live
    assert seen[-1][1:] == ("end", {"status": "DEPLOYED"})
    stored = events(stack, path)
    assert stored[-1][1:] == ("end", {"status": "DEPLOYED"})
    middle = stored[len(stored) // 2]
    assert events(stack, path, **{"Last-Event-ID": middle[0]}) == stored[stored.index(middle) + 1 :]

    assert app.says() == "s3cret-token|given|secret|-"


def test_a_create_whose_answer_was_lost_is_sent_again(stack: Stack) -> None:
    body = {"name": f"app-{uuid4().hex[:8]}", "source": "internal_source"}
    headers = {"Idempotency-Key": str(uuid4())}
    first, again = (stack.client.post("/v2/deployments", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["Idempotent-Replayed"] == "true"


def test_no_way_out_of_an_error_shows_a_secret(stack: Stack) -> None:
    secret = "s3cret 'token'/é"
    app = App(stack, secrets=[{"name": "TOKEN", "value": secret}, {"name": "SHORT", "value": "a"}])
    app.deployed(project("{}[__import__('os').environ['TOKEN']]"))
    sdk, address = stack.sdk(app.name), f"/d/{app.name}"
    call = {"jsonrpc": "2.0", "id": 1}
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": {"said": "hi"}}]}

    with receiving() as receiver:
        thread_id = sdk.threads.create()["thread_id"]
        modes: Any = ["values", "tasks", "debug", "checkpoints", "events"]
        streamed = list(
            sdk.runs.stream(thread_id, "agent", input={}, stream_mode=modes, webhook=receiver.url)
        )
        run = sdk.runs.list(thread_id)[0]
        hook = wait_until(lambda: receiver.calls_of(run["run_id"]), 20)[0].document
    said = {
        "stream": [[part.event, part.data] for part in streamed],
        "run": run,
        "thread": sdk.threads.get(thread_id),
        "state": sdk.threads.get_state(thread_id),
        "history": sdk.threads.get_history(thread_id),
        "wait": sdk.runs.wait(thread_id, "agent", input={}, raise_error=False),
        "webhook": hook,
        "search": app.call("POST", f"{address}/runs/search", json={"error": "KeyError"}),
        "mcp": app.call(
            "POST",
            f"{address}/mcp",
            json={**call, "method": "tools/call", "params": {"name": "agent", "arguments": {}}},
            headers={"Accept": "application/json, text/event-stream"},
        ),
        "a2a": app.call(
            "POST",
            f"{address}/a2a/agent",
            json={**call, "method": "SendMessage", "params": {"message": message}},
        ),
        "log": wait_until(app.deploy_log, 20),
    }
    broken = project()
    broken["agent.py"] += "\nraise ValueError('no access with ' + __import__('os').environ['TOKEN'])\n"
    failed = app.ended(app.push(broken))
    said |= {"revision": failed, "build log": app.build_log(failed["id"])}

    for exit, content in said.items():
        assert "***" in json.dumps(content) or exit in ("run", "search"), exit  # without a text
        assert "s3cret" not in json.dumps(content), exit
    assert failed["status_message"].endswith("ValueError: no access with ***")


def at_work(path: Path) -> list[psutil.Process]:
    """Return the processes that refer to a path below this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(path) in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_new_versions_replace_each_other_and_an_old_one_comes_back(stack: Stack) -> None:
    old, new = ([{"name": "WHO", "value": who}] for who in ("old", "new"))
    app = App(stack, secrets=old)
    one, two, three = (
        project(f"'{word} of ' + __import__('os').environ['WHO']") for word in ("one", "two", "three")
    )

    # Of three quick pushes, the last one wins.
    first, skipped = app.push(one), app.push(two)
    last = app.push(three, secrets=new)
    assert [app.ended(id)["status"] for id in (first, skipped, last)] == ["DEPLOYED", "SKIPPED", "DEPLOYED"]
    assert app.says() == "three of new"

    # The first one comes back with its secrets.
    again = app.call("POST", f"/v2/deployments/{app.id}/revisions/{first}/redeploy")["latest_revision_id"]
    assert again not in (first, skipped, last)
    assert app.ended(again)["status"] == "DEPLOYED"
    assert app.record()["active_revision_id"] == again
    assert app.says() == "one of old"
    listed = app.call("GET", f"/v2/deployments/{app.id}/revisions")["resources"]
    assert [entry["id"] for entry in listed] == [again, last, skipped, first]

    # An interrupted build stops, and the next one goes.
    id = app.push(project() | {"agent.py": "import time; time.sleep(600)"})
    wait_until(lambda: "loading" in app.build_log(id), BUILD_SECONDS, what="the graphs to be loaded")
    folder = stack.data_dir / "revisions" / id
    wait_until(lambda: at_work(folder), BUILD_SECONDS, what="the build's processes")
    following = app.push(three, secrets=new)
    assert app.revision(following)["status"] == "QUEUED"

    app.call("POST", f"/v2/deployments/{app.id}/revisions/{id}/interrupt")

    assert app.revision(id)["status"] == "INTERRUPTED"
    assert app.ended(following)["status"] == "DEPLOYED"
    assert app.says() == "three of new"
    wait_until(lambda: not at_work(folder), BUILD_SECONDS, what="the build's processes to end")
    wait_until(lambda: not folder.exists(), BUILD_SECONDS, what="its files to go")
