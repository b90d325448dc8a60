"""`runyard dev`: its settings, its output, and the file changes that it notices."""

from __future__ import annotations

import io
import json
import os
import re
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.client.client import Client
from cli.deployments import project as projects
from cli.deployments.project import Project, original_paths
from cli.errors import BadUsage
from cli.machine import dev, serve
from cli.machine.dev import Developing, ProjectFiles, changes, first_run, state_of
from cli.machine.supervisor import Lines
from cli.machine.up import environment_of
from shared.settings import Settings
from tests.support.commands import invoke
from tests.support.control_plane import BUILD_LOG, REVISION, ControlPlane, D, deploy_answers, line

pytestmark = pytest.mark.usefixtures("nowhere")


def developing(server: ControlPlane, project: Path, said: io.StringIO, **options: Any) -> Developing:
    settings = Settings(dev_deployment="my-app", url=server.url, data_dir=project)
    files = ProjectFiles(project, "langgraph.json", None)
    return Developing(Client(server.url, "key"), settings, files, Lines(said), **options)


def test_without_a_reload_nothing_is_built_again_nor_said_to_be(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server, "BUILD_FAILED")
    said = io.StringIO()
    code = developing(server, project, said).develop(reload=False)
    assert code == 1, "what cannot serve ends"
    assert "Mend it, and start dev again." in said.getvalue()
    assert "built again" not in said.getvalue()


def test_what_serves_is_greeted_with_its_addresses(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    server.answers[f"POST /v1/projects/{D}/deploy_logs"] = [(200, {"logs": [], "next_offset": None})]
    said = io.StringIO()
    made = developing(server, project, said, limits={"max_concurrent_runs": 2})
    assert made.develop(reload=False) is None
    assert f"https://smith.langchain.com/studio/?baseUrl={server.url}\n" in said.getvalue()
    assert "Studio needs `runyard dev --studio`." in said.getvalue()
    assert server.body("POST /v2/deployments")["limits"] == {"max_concurrent_runs": 2}


def test_a_greeting_is_of_what_the_project_says(server: ControlPlane, project: Path) -> None:
    """The greeting depends on the project's authorization and on its mount prefix."""

    def greeting(**config: Any) -> str:
        config = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}, **config}
        (project / "langgraph.json").write_text(json.dumps(config))
        server.answers = deploy_answers(server)
        server.answers[f"POST /v1/projects/{D}/deploy_logs"] = [(200, {"logs": [], "next_offset": None})]
        said = io.StringIO()
        developing(server, project, said).develop(reload=False)
        return said.getvalue()

    guarded = greeting(auth={"path": "./a.py:auth"})
    assert "Its own authorization decides who may call." in guarded
    assert "No key is needed" not in guarded
    below = greeting(http={"mount_prefix": "/api"})
    assert f"  Docs      {server.url}/api/docs\n" in below
    assert f'get_client(url="{server.url}/api")' in below


def test_texts_name_the_files_that_are_edited_and_not_a_revision_s_copies(tmp_path: Path) -> None:
    project, data_dir = tmp_path / "all" / "app", tmp_path / "data"
    for folder in (project, tmp_path / "all" / "lib"):
        folder.mkdir(parents=True)
    files = ProjectFiles(project, "langgraph.json", None)
    copy = f"{data_dir}/revisions/0192f0c1-7a7c-7000-8000-000000000000"
    text = f'File "{copy}/project/app/agent.py", line 3 ({copy}/env/bin/python, {copy}/project)'

    said = io.StringIO()
    for dependencies in ("[]", '["../lib"]'):
        (project / "langgraph.json").write_text(f'{{"dependencies": {dependencies}}}')
        Lines(said, partial(original_paths, data_dir, files.root)).show("agent", text)

    assert said.getvalue().splitlines() == [
        f'agent    │ File "{root}/app/agent.py", line 3 ({copy}/env/bin/python, {root})'
        for root in (project, project.parent)
    ]


def test_warnings_of_a_build_are_shown_and_its_other_lines_only_when_it_fails(
    server: ControlPlane, project: Path
) -> None:
    logged = [line(1, "INFO"), line(2, "WARNING", "WARNING")]
    for end, shown in (("DEPLOYED", ["WARNING"]), ("BUILD_FAILED", ["WARNING", "INFO"])):
        server.answers = deploy_answers(server, end)
        server.answers[BUILD_LOG] = [(200, {"logs": rows, "next_offset": "1"}) for rows in (logged, [])]
        server.answers[f"POST /v1/projects/{D}/deploy_logs"] = [(200, {"logs": [], "next_offset": None})]
        said = io.StringIO()
        developing(server, project, said).develop(reload=False)
        assert re.findall(r"^  (INFO|WARNING)$", said.getvalue(), re.MULTILINE) == shown


def test_a_first_build_shows_its_steps_and_the_reason_of_a_failure_once(
    server: ControlPlane, project: Path
) -> None:
    reason = "graph 'agent': ./agent.py failed: SyntaxError: invalid syntax"
    steps = ["resolving requirements", "installing 40 packages", "loading 1 graph"]
    messages = [steps[0], " + langgraph==1.0", *steps[1:], f"step 'graphs' failed: {reason}"]
    server.answers = deploy_answers(server, "BUILD_FAILED")
    logs = [line(number, message) for number, message in enumerate(messages)]
    server.answers[BUILD_LOG] = [(200, {"logs": rows, "next_offset": "1"}) for rows in (logs, [])]
    (_, record) = server.answers[REVISION][-1]
    record["status_message"] = f"graphs: {reason}"
    said = io.StringIO()
    developing(server, project, said).develop(reload=False)
    assert said.getvalue().count(reason) == 1
    shown = [text.strip() for text in said.getvalue().splitlines() if text.startswith("  ")]
    assert shown == [*steps, "+ langgraph==1.0"], "the rest follows when the build has failed"


def test_its_hosts_stay_and_its_address_is_its_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dev` keeps idle graph hosts by default, and takes its address from --host only."""
    for name in ("RUNYARD_LISTEN_HOST", "RUNYARD_HOST"):
        monkeypatch.setenv(name, "10.0.0.1")
    found = dev.settings_for(Project.read(project), 2025, None, verbose=False)
    assert (found.url, found.host_idle_seconds) == ("http://127.0.0.1:2025", 0)
    monkeypatch.setenv("RUNYARD_HOST_IDLE_SECONDS", "5")
    found = dev.settings_for(Project.read(project), 2025, None, verbose=False, host="0.0.0.0")
    assert (found.url, found.host_idle_seconds) == ("http://127.0.0.1:2025", 5)


def test_a_taken_port_is_reported_before_anything_starts(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.machine.up.close_memory", lambda: None)  # the tests' process stays open
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = invoke("dev", str(project), "--port", str(taken.getsockname()[1]))
    assert ran.exit_code == 1
    assert "choose another with --port." in ran.output
    assert "Starting" not in ran.output


def test_the_addresses_of_a_service_for_other_machines_have_a_line_of_their_own() -> None:
    everywhere = {"RUNYARD_LISTEN_HOST": "0.0.0.0", "RUNYARD_PORT": "8155"}
    for more, console, has_line in (
        ({}, "http://127.0.0.1:8155/", True),
        ({"RUNYARD_URL": "https://agents.example"}, "https://agents.example/", False),
        ({"RUNYARD_LISTEN_HOST": "127.0.0.1"}, "http://127.0.0.1:8155/", False),
    ):
        text = "\n".join(serve.addresses(Settings.from_env(everywhere | more), ["app"]))
        assert f"Console         {console}\n" in text
        assert f"Deployment      {console}d/app\n" in text
        assert ("There: runyard login http://ADDRESS:8155" in text) is has_line, text


def test_an_origin_is_what_a_browser_calls_it() -> None:
    """An origin is normalized to scheme and lower-case host, and refused without a scheme."""
    assert dev.origin_of("https://Smith.LangChain.com/studio/") == dev.STUDIO
    with pytest.raises(BadUsage):
        dev.origin_of("smith.langchain.com")


def test_the_peer_s_options_are_taken_with_a_notice(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Settings] = []
    monkeypatch.setattr(dev, "run_service", lambda settings, *_: asked.append(settings) or 0)
    options = ["--no-browser", "--allow-blocking", "--debug-port", "5678", "--wait-for-client", "--studio"]
    ran = invoke("dev", str(project), "--host", "localhost", "--n-jobs-per-worker", "2", *options)
    assert ran.exit_code == 0, ran.output
    assert (asked[0].listen_host, asked[0].dev_origin) == ("localhost", dev.STUDIO)
    assert asked[0].dev_debug_port == 0
    assert "No effect for graphs in Python" in ran.output


def test_a_debugger_attaches_to_the_only_host_of_a_javascript_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []
    monkeypatch.setattr(dev, "run_service", lambda settings, *_: asked.append(settings) or 0)
    projects.create_project(tmp_path / "app", "typescript")

    ran = invoke("dev", str(tmp_path / "app"), "--wait-for-client")

    assert ran.exit_code == 0, ran.output
    assert "No effect" not in ran.output
    environment = environment_of(asked[0])
    assert environment["RUNYARD_DEV_DEBUG_PORT"] == str(dev.DEBUG_PORT)
    assert environment["RUNYARD_DEV_DEBUG_WAITS"] == "true"
    assert environment["RUNYARD_HOSTS_PER_REVISION"] == "1"
    invoke("dev", str(tmp_path / "app"), "--debug-port", "5678")
    assert (asked[1].dev_debug_port, asked[1].dev_debug_waits) == (5678, False)


@pytest.mark.parametrize(
    ("graphs", "typed"),
    [
        ({"a": ""}, 'runyard run my-agent "Hello!"'),
        ({"a": "", "b": ""}, 'run my-agent --assistant a "Hello!"'),
    ],
)
def test_a_first_run_can_be_typed_as_it_is_shown(graphs: dict[str, str], typed: str, tmp_path: Path) -> None:
    project = Project(tmp_path / "My Agent", "langgraph.json", {"graphs": graphs})
    shown = first_run(project, "my-agent")
    assert shown.startswith(f"cd '{tmp_path}/My Agent' && ")
    assert shown.endswith(typed)


def test_changes_are_those_that_a_deploy_would_see(tmp_path: Path) -> None:
    projects.create_project(tmp_path / "app", "chat")
    folder = tmp_path / "app"
    project = Project.read(folder)
    told = changes(lambda: Project.read(folder), state_of(project))

    (folder / "agent.py").write_text("changed = 1")
    (folder / ".runyard").mkdir()
    (folder / ".runyard" / "noise").write_text("x")
    assert next(told) == ["agent.py"]

    (folder / "more").mkdir()
    (folder / "more" / "tool.py").write_text("x = 1")
    assert next(told) == ["more/tool.py"], "also in a directory that was not there before"

    (folder / "more" / "tool.py").write_text("x = 22")
    assert next(told) == ["more/tool.py"]

    (folder / ".env").write_text("KEY=v")
    assert next(told) == [".env"], "variables count, though they are never in an archive"

    os.remove(folder / "more" / "tool.py")
    assert next(told) == ["more/tool.py"]
