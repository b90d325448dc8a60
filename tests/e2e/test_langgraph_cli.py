"""The unmodified `langgraph deploy` (langgraph-cli, a development dependency) against the whole platform."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from click.testing import CliRunner
from langgraph_cli.cli import cli as command_line

from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from tests.support import one_file
from tests.support.stack import Stack
from tests.support.waiting import wait_until

WORKSHOP = Path(__file__).parent.parent / "projects" / "workshop"
COMMAND = str(Path(sys.executable).with_name("langgraph"))
SECRET = "cookie-recipe-4711"
NAME = "my-agent-app-v2"
DEPLOY = ("deploy", "--no-input", "--remote")
DEPLOY_SECONDS = 90
CONFLICT = "langgraph==0.2.0\n"  # the service needs a newer one

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # from the command

AGENT = """
import os
from langgraph.graph import START, MessagesState, StateGraph
class State(MessagesState):
    said: str
def say(state: State):
    print("saying", os.environ.get("RECIPE"))
    return {"said": %r + " " + os.environ.get("RECIPE", "-")}
graph = StateGraph(State).add_node(say).add_edge(START, "say").compile()
"""


def write(folder: Path, said: str, requirements: str = "") -> Path:
    return one_file.write(folder, AGENT % said, requirements)


@dataclass
class LangGraph:
    """The `langgraph` command, called in a project's folder."""

    stack: Stack
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LANGGRAPH_HOST_URL": self.stack.url,
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            **self.variables,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Processes that a shell started in the background ignore SIGINT and pass that on to their children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str, exit_code: int = 0) -> str:
        """Run the command and return its output, stderr last. Fails on another exit code.

        The command runs in this process, because loading it takes longer than most of its work here.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setattr(os, "environ", self.environment)
            done = CliRunner().invoke(command_line, arguments)
        assert done.exit_code == exit_code, f"exit code {done.exit_code}\n{done.output}\n{done.exc_info}"
        return done.stdout + done.stderr


@dataclass
class Deployed:
    """A deployment created by the command, and the command's output."""

    cli: LangGraph
    id: str
    printed: str

    @property
    def stack(self) -> Stack:
        return self.cli.stack

    def record(self) -> Any:
        return self.stack.client.get(f"/v2/deployments/{self.id}").json()

    def revisions(self) -> list[Any]:
        return list(self.stack.client.get(f"/v2/deployments/{self.id}/revisions").json()["resources"])

    def says(self) -> str:
        values: Any = self.stack.sdk(self.record()["name"]).runs.wait(None, "agent", input={"messages": []})
        return str(values["said"])


def lines_of(printed: str) -> list[Any]:
    """Return the parsed JSON lines in the output."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def deployed(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """A project deployed from its directory. The only configuration is the API key in its `.env`."""
    folder = write(tmp_path_factory.mktemp("langgraph") / "My_Agent App.v2", "one")
    (folder / ".env").write_text(f"LANGSMITH_API_KEY={stack.api_key}\nRECIPE={SECRET}\n")
    cli = LangGraph(stack, folder)
    out, err = (process := cli.start(*DEPLOY)).communicate(timeout=DEPLOY_SECONDS)
    assert process.returncode == 0, f"{out}\n{err}"
    return Deployed(cli, stack.record(NAME)["id"], out + err)


@pytest.fixture
def cli(stack: Stack, tmp_path: Path) -> LangGraph:
    """The command in an empty folder, with the admin key."""
    return LangGraph(stack, tmp_path, {"LANGSMITH_API_KEY": stack.api_key})


def test_a_directory_is_deployed_with_the_variables_of_its_env_file(deployed: Deployed) -> None:
    url = f"{deployed.stack.url}/d/{NAME}"
    assert f"URL: {url}" in deployed.printed
    assert httpx.get(f"{url}/ok").json()["ok"] is True
    assert deployed.says() == f"one {SECRET}"
    record = deployed.record()
    assert record["source_config"]["deployment_type"] == "dev_zero"
    assert [secret["name"] for secret in record["secrets"]] == ["RECIPE"], "the key is none of them"
    [link] = set(re.findall(r"View status: (\S+)", deployed.printed))
    page = httpx.get(link, headers={"Accept": "text/html"}, follow_redirects=True)
    assert page.status_code == 200
    assert page.headers["Content-Type"].startswith("text/html")


def test_it_is_deployed_again_by_its_name(deployed: Deployed) -> None:
    before = deployed.record()["active_revision_id"]
    write(deployed.cli.folder, "two")
    told = lines_of(deployed.cli.run(*DEPLOY, "--json"))

    assert deployed.says() == f"two {SECRET}"
    found = deployed.record()
    assert (found["id"], found["name"]) == (deployed.id, NAME)
    assert found["active_revision_id"] == found["latest_revision_id"] != before
    result = told[-1]
    assert {key: result[key] for key in ("event", "status", "deployment_id", "url")} == {
        "event": "result",
        "status": "succeeded",
        "deployment_id": deployed.id,
        "url": f"{deployed.stack.url}/d/{NAME}",
    }
    listed = deployed.cli.run("deploy", "revisions", "list", deployed.id, "--limit", "500")
    rows = [line.split()[:2] for line in listed.splitlines()[2:]]
    assert rows[0] == [found["active_revision_id"], "DEPLOYED"]
    assert [before, "REPLACED"] in rows


def test_secrets_are_in_no_answer_and_no_log(deployed: Deployed) -> None:
    deployed.says()
    logs = ("deploy", "logs", "--name", NAME, "--query", "saying")
    wait_until(lambda: "saying ***" in deployed.cli.run(*logs), what="the graph's line")
    shown = json.dumps([deployed.record(), deployed.revisions()])
    shown += deployed.cli.run("deploy", "logs", "--name", NAME, "--limit", "1000")
    shown += deployed.cli.run("deploy", "logs", "--name", NAME, "--type", "build")
    assert SECRET not in shown + deployed.stack.log.read_text()


def test_what_cannot_be_built_says_so_and_the_old_revision_serves(deployed: Deployed, cli: LangGraph) -> None:
    serving = deployed.record()["active_revision_id"]
    said = deployed.says()
    write(deployed.cli.folder, "never", requirements="no-such-thing-anywhere-xyz==1\n")
    imports = LangGraph(deployed.stack, write(cli.folder / "imports", "never"), cli.variables)
    # The build takes longer than the command's polling interval of three seconds.
    (imports.folder / "agent.py").write_text("import time; time.sleep(4); import nothing_like_that\n")
    verbose = imports.start(*DEPLOY, "--json", "--verbose")
    printed = deployed.cli.run(*DEPLOY, exit_code=1)
    out, err = verbose.communicate(timeout=DEPLOY_SECONDS)

    last_lines = printed.partition("Last build log lines:")[2]
    assert "no-such-thing-anywhere-xyz" in last_lines
    assert "Deployment failed" in last_lines
    assert deployed.revisions()[0]["status"] == "BUILD_FAILED"
    assert deployed.record()["active_revision_id"] == serving
    assert deployed.says() == said

    assert verbose.returncode == 1, out + err
    told = lines_of(out)
    assert told[-1]["status"] == "failed"
    build = imports.run("deploy", "logs", "--name", "imports", "--type", "build")
    stored = re.findall(r"^\[[^]]+\] \[[A-Z]+\] (.*)$", build, re.MULTILINE)
    assert any("No module named 'nothing_like_that'" in line for line in stored)
    live = [line["message"] for line in told if line["event"] == "log"]
    assert live, "it asks for lines while a build goes on, not after its end"
    assert live == stored[: len(live)], "each line once"


def test_a_monorepo_with_variables_of_its_own_is_deployed_by_name_and_then_by_id(
    stack: Stack, cli: LangGraph
) -> None:
    shutil.copytree(WORKSHOP, cli.folder / "repo", ignore=shutil.ignore_patterns("__pycache__"))
    folder = cli.folder / "repo" / "apps" / "agent"
    here = LangGraph(stack, folder, cli.variables)
    here.run(*DEPLOY, "--name", "Mono Repo", "--deployment-type", "dedicated")
    made = stack.record("mono-repo")
    assert made["source_config"]["deployment_type"] == "prod"
    assert made["source_revision_config"]["langgraph_config_path"] == "apps/agent/langgraph.json"
    assert made["secrets"] == [{"name": "GREETING", "value": "********"}]
    result: Any = stack.sdk("mono-repo").runs.wait(None, "agent", input={"said": ""})
    assert result["said"] == "bench hammer flat saw from the bench"
    described = stack.sdk("mono-repo").assistants.search(graph_id="agent")[0]
    assert described["description"] == "Uses tools that lie beside it."
    built = here.run("deploy", "logs", "--deployment-id", made["id"], "--type", "build")
    assert "dockerfile_lines: is not done here and is ignored" in built

    printed = here.run(*DEPLOY, "--deployment-id", made["id"], "--no-wait")
    assert "Build triggered" in printed
    assert len(stack.client.get(f"/v2/deployments/{made['id']}/revisions").json()["resources"]) == 2


@pytest.fixture
def unbuildable(stack: Stack, cli: LangGraph) -> LangGraph:
    """The command in the folder of a project that fails before its code is loaded."""
    return LangGraph(stack, write(cli.folder / "goes", "never", requirements=CONFLICT), cli.variables)


def test_an_agent_has_one_deployment_in_an_environment_and_frees_its_name_at_once(
    stack: Stack, unbuildable: LangGraph
) -> None:
    agent = ("--agent-id", "support", "--agent-environment", "staging")
    printed = unbuildable.run(*DEPLOY, *agent, "--no-wait")
    assert "Deployment name: agent-support-staging" in printed
    id = stack.record("agent-support-staging")["id"]
    assert f"Found existing deployment (ID: {id})" in unbuildable.run(*DEPLOY, *agent, "--no-wait")
    listed = json.loads(unbuildable.run("deploy", "list", "--json", *agent).splitlines()[0])
    assert listed == [{"id": id, "name": "agent-support-staging"}]

    assert f"Deleted deployment {id}." in unbuildable.run("deploy", "delete", "--force", id)
    assert "No deployments found." in unbuildable.run("deploy", "list", "--name-contains", "agent-support")
    assert "404" in unbuildable.run("deploy", "delete", "--force", id, exit_code=1)
    unbuildable.run(*DEPLOY, *agent, "--no-wait")
    assert stack.record("agent-support-staging")["id"] != id


UNKNOWN = "01890000-0000-7000-8000-000000000000"
IMAGE = f"registry.example/a@sha256:{'0' * 64}"
# Output of the command → (arguments, environment variables, exit code).
SAID: dict[str, tuple[tuple[str, ...], dict[str, str], int]] = {
    "No LangSmith API key found.": (DEPLOY, {"LANGSMITH_API_KEY": ""}, 1),
    "failed with status 401: Unknown API key": (DEPLOY, {"LANGSMITH_API_KEY": "wrong"}, 1),
    "failed with status 403: X-Tenant-Id names no organization": (
        DEPLOY,
        {"LANGSMITH_TENANT_ID": UNKNOWN},
        1,
    ),
    f"failed with status 404: Deployment ID {UNKNOWN} not found.": (
        (*DEPLOY, "--deployment-id", UNKNOWN),
        {},
        1,
    ),
    '"loc":["path","deployment_id"]': ((*DEPLOY, "--deployment-id", "chat"), {}, 1),
    "Deployment 'nobody' not found.": (("deploy", "logs", "--name", "nobody"), {}, 1),
    f"Deployment ID {UNKNOWN} not found.": (("deploy", "revisions", "list", UNKNOWN), {}, 1),
    "failed with status 400: The source 'external_docker' is not supported by this service: upload": (
        ("deploy", "--no-input", "--image-uri", IMAGE),
        {},
        1,
    ),
    "failed with status 400: The source 'internal_docker' is not supported by this service: upload": (
        ("deploy", "--no-input", "--image", "a:latest"),
        {},
        1,
    ),
    "This workspace has no listeners": (
        ("deploy", "--no-input", "--image-uri", IMAGE, "--listener-id", UNKNOWN),
        {},
        2,
    ),
    "No listeners found for this workspace.": (("deploy", "listeners", "list"), {}, 0),
}


@pytest.mark.parametrize("sentence", SAID)
def test_what_goes_wrong_is_said_in_a_sentence(cli: LangGraph, sentence: str) -> None:
    arguments, variables, exit_code = SAID[sentence]
    cli.variables.update(variables)
    write(cli.folder, "never")
    assert sentence in cli.run(*arguments, exit_code=exit_code)


def test_the_service_is_found_under_the_prefix_of_a_self_hosted_one(stack: Stack, cli: LangGraph) -> None:
    cli.variables.update(LANGGRAPH_HOST_URL="", LANGSMITH_ENDPOINT=f"{stack.url}/api/v1")
    assert "No listeners found" in cli.run("deploy", "listeners", "list")


@pytest.fixture
def rows(stack: Stack) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the platform's database, for test data that would take long to create over HTTP."""
    with psycopg.connect(stack.database_url, autocommit=True) as conn:
        yield conn


def test_hundreds_of_deployments_are_listed_each_once(cli: LangGraph, rows: psycopg.Connection[Any]) -> None:
    prefix = f"many-{uuid4().hex[:8]}"
    rows.execute(
        "INSERT INTO deployment (id, organization_id, name, source, status, pool)"
        " SELECT gen_random_uuid(), %s, %s || '-' || n, 'internal_source', 'READY', 'default'"
        " FROM generate_series(1, 200) n",
        [DEFAULT_ORGANIZATION_ID, prefix],
    )
    made = {f"{prefix}-{n}" for n in range(1, 201)}
    try:
        listed = json.loads(cli.run("deploy", "list", "--json"))
        table = cli.run("deploy", "list", "--name-contains", prefix).splitlines()[2:]
    finally:
        rows.execute("DELETE FROM deployment WHERE starts_with(name, %s)", [prefix])
    assert made <= {row["name"] for row in listed}
    assert len({row["id"] for row in listed}) == len(listed)
    assert sorted(line.split()[1] for line in table) == sorted(made)


@dataclass
class Logged:
    """A deployment without source, whose log lines the test inserts."""

    rows: psycopg.Connection[Any]
    id: str
    count: int = 0
    at: datetime = field(
        default_factory=lambda: datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    )

    def say(self, *levels: str) -> None:
        """Insert a line `line N.` for each level, a microsecond apart."""
        lines = []
        for level in levels:
            self.count += 1
            self.at += timedelta(microseconds=1)
            lines.append((self.id, "deploy", self.at, level, f"line {self.count}."))
        with self.rows.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO log_line (deployment_id, kind, at, level, message) VALUES (%s, %s, %s, %s, %s)",
                lines,
            )


@pytest.fixture
def logged(stack: Stack, rows: psycopg.Connection[Any]) -> Logged:
    body = {"name": f"logged-{uuid4().hex[:8]}", "source": "internal_source"}
    return Logged(rows, stack.client.post("/v2/deployments", json=body).json()["id"])


def numbers(printed: str) -> list[int]:
    return [int(number) for number in re.findall(r"line (\d+)\.", printed)]


def test_a_log_is_searched(cli: LangGraph, logged: Logged) -> None:
    logs = ("deploy", "logs", "--deployment-id", logged.id)
    assert "No log entries found." in cli.run(*logs)
    at = logged.at
    logged.say("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    printed = cli.run(*logs).splitlines()
    assert printed[1] == f"[{at:%Y-%m-%d %H:%M:%S}] [INFO] line 2."
    assert numbers(cli.run(*logs, "--level", "warning")) == [3, 4, 5]
    assert numbers(cli.run(*logs, "--query", "LINE 4")) == [4]
    assert numbers(cli.run(*logs, "--limit", "2")) == [4, 5]
    assert numbers(cli.run(*logs, "--limit", "5000")) == [1, 2, 3, 4, 5]
    second = f"{at:%Y-%m-%dT%H:%M:%S}"
    window = ("--start-time", f"{second}.000003Z", "--end-time", f"{second}.000003Z")
    assert numbers(cli.run(*logs, *window)) == [2, 3, 4], (
        "inclusive, and wide enough for what milliseconds lose"
    )
    assert numbers(cli.run(*logs, "--start-time", f"{at + timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}")) == []


def test_a_log_is_followed_without_gaps_or_repeats(cli: LangGraph, logged: Logged) -> None:
    logged.say(*["INFO"] * 300)
    process = cli.start("deploy", "logs", "--deployment-id", logged.id, "--follow", "--limit", "500")
    printed: list[int] = []

    def read() -> None:
        for line in process.stdout or ():
            printed.extend(numbers(line))

    with ThreadPoolExecutor(1) as readers:
        reading = readers.submit(read)
        try:
            wait_until(lambda: len(printed) >= 300, DEPLOY_SECONDS, what="what there was")
            logged.say(*["INFO"] * 900)
            wait_until(lambda: len(printed) >= 600, DEPLOY_SECONDS, what="a page of what came")
            logged.say(*["INFO"] * 100)
            wait_until(lambda: len(printed) >= 1300, DEPLOY_SECONDS, what="the last line")
            process.send_signal(signal.SIGINT)
            assert process.wait(DEPLOY_SECONDS) == 0
        finally:
            process.kill()  # the reading thread would otherwise wait forever
        reading.result(DEPLOY_SECONDS)
    assert printed == list(range(1, 1301))
