"""The commands against a scripted control plane: their requests, their output and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from typer.main import get_command

from cli.client.client import Client
from cli.deployments.logs import Log
from cli.deployments.project import KEPT_ROOT, keep_root
from cli.main import app
from cli.output import json_text
from tests.support import control_plane as fake
from tests.support.commands import deployed, invoke, json_lines, runyard
from tests.support.control_plane import BUILD_LOG, REVISION, ControlPlane, D, R, deploy_answers, record
from tests.support.outside import certified, serving

pytestmark = pytest.mark.usefixtures("nowhere")


# deploy


def test_a_first_deploy_asks_in_the_order_of_the_protocol(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    (project / ".env").write_text("KEY=v\nRUNYARD_PORT=1\n")

    ran = runyard(server, "deploy", str(project), "--pool", "gpu", "--max-concurrent-runs", "4")

    assert ran.exit_code == 0, ran.output
    assert server.asked[:5] == [
        "GET /v2/deployments",
        "POST /v2/deployments",
        f"POST /v2/deployments/{D}/upload-url",
        "PUT /put",
        f"PATCH /v2/deployments/{D}",
    ]
    assert server.body("POST /v2/deployments") == {
        "name": "my-app", "source": "internal_source", "source_config": {"deployment_type": "dev"},
        "source_revision_config": {}, "secrets": [{"name": "KEY", "value": "v"}], "pool": "gpu",
        "limits": {"max_concurrent_runs": 4},
    }  # fmt: skip
    assert server.body(f"PATCH /v2/deployments/{D}") == {
        "revision_source": "internal_source",
        "source_revision_config": {"source_tarball_path": "o", "langgraph_config_path": "langgraph.json"},
        "secrets": [{"name": "KEY", "value": "v"}],
    }
    told = ran.stdout.splitlines()
    assert told[0] == "RUNYARD_PORT is reserved and is not sent"
    assert "RUNYARD_PORT is reserved and is not sent" in told
    assert "  no such module" in told
    assert told[-1] == "Deployment app: http://there/d/app"
    assert "\x1b" not in ran.stdout, "colour is for terminals"


def test_a_second_deploy_updates_what_it_finds_by_name(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    found = {"resources": [record(name="my-app-2"), record(name="my-app")]}
    server.answers["GET /v2/deployments"] = [(200, found)]

    ran = runyard(server, "deploy", str(project), "--prod", "--memory-mb", "512")

    assert ran.exit_code == 0, ran.output
    assert "POST /v2/deployments" not in server.asked
    assert server.body(f"PATCH /v2/deployments/{D}")["limits"] == {"memory_mb": 512}


def test_a_deploy_warns_of_a_pool_without_a_runner(server: ControlPlane, project: Path) -> None:
    warning = "Warning: the pool gpu has no runner."
    for runners, draining, warns in ((0, 0, True), (1, 1, True), (2, 1, False)):
        server.answers = deploy_answers(server)
        served = record(active_revision_id=R, source_config={"custom_url": "http://there/d/app"}, pool="gpu")
        server.answers[f"GET /v2/deployments/{D}"] = [(200, served)]
        pool = {"name": "gpu", "runners": runners, "draining": draining}
        server.answers["GET /v2/workers"] = [(200, {"pools": [pool], "workers": []})]

        ran = runyard(server, "deploy", str(project))

        assert ran.exit_code == 0, ran.output
        assert (warning in ran.stdout) is warns, f"{runners} runners, {draining} draining"
        assert ran.stdout.splitlines()[-1] == "Deployment app: http://there/d/app"


def test_a_configuration_that_no_build_accepts_is_refused_before_anything_is_sent(
    server: ControlPlane, project: Path
) -> None:
    server.answers = deploy_answers(server)
    for config, where in (
        (
            {"graphs": {"a": "./a.ts:graph", "b": "./b.py:graph"}},
            "graphs: Python and JavaScript graphs in one",
        ),
        ({"graphs": {"a": "./a.py:a"}, "auth": {"path": "./auth.js:auth"}}, "auth.path: './auth.js' is Java"),
        (
            {"graphs": {"a": {"path": "./a.mjs"}}, "auth": {"path": "./auth.py:a"}},
            "auth.path: './auth.py' is Py",
        ),
        ({"graphs": {}, "http": {"app": "./app.tsx:app"}}, "http.app: './app.tsx': files that end in .tsx"),
        (
            {"graph": {"agent": "./agent.py:graph"}},
            "langgraph.json: graph: unknown key. Did you mean graphs?",
        ),
        (
            {"dependency": ["."], "graphs": {"agent": "./agent.py:graph"}},
            "langgraph.json: dependency: unknown key. Did you mean dependencies?",
        ),
        ({"dependencies": ["."]}, "langgraph.json: graphs: this key is missing"),
    ):
        (project / "langgraph.json").write_text(json.dumps(config))

        ran = runyard(server, "deploy", str(project))

        assert (ran.exit_code, where in ran.stderr) == (1, True), ran.stderr
    assert server.asked == []


@pytest.mark.parametrize("refused_call", ["PUT /put", f"PATCH /v2/deployments/{D}"])
def test_a_first_deploy_that_is_refused_leaves_no_deployment(
    server: ControlPlane, project: Path, refused_call: str
) -> None:
    delete = f"DELETE /v2/deployments/{D}"
    for revision, is_deleted in (("CREATING", True), ("BUILDING", False)):
        server.asked.clear()
        server.answers = deploy_answers(server)
        server.answers[refused_call] = [(413, {"detail": "The archive is too large."})]
        server.answers[f"GET /v2/deployments/{D}/revisions"] = [
            (200, {"resources": [{"id": R, "status": revision}]})
        ]
        server.answers[delete] = [(204, None)]

        ran = runyard(server, "deploy", str(project))

        assert (ran.exit_code, "The archive is too large." in ran.stderr) == (1, True), ran.stderr
        assert (delete in server.asked) is is_deleted, f"its revision is {revision}"


def test_a_repository_is_named_and_nothing_is_uploaded(server: ControlPlane) -> None:
    server.answers = deploy_answers(server)

    address = "https://git.example/team/Agents.git"
    ran = runyard(server, "deploy", "--git", address, "--ref", "main", "-c", "apps/one/langgraph.json")

    assert ran.exit_code == 0, ran.output
    body = server.body("POST /v2/deployments")
    assert (body["name"], body["source"]) == ("agents", "github")
    assert body["source_config"] == {"deployment_type": "dev", "repo_url": address}
    assert body["source_revision_config"] == {
        "repo_ref": "main",
        "langgraph_config_path": "apps/one/langgraph.json",
    }
    assert not [what for what in server.asked if what.startswith(("PUT", "PATCH"))]


@pytest.mark.parametrize("end", ["CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "INTERRUPTED", "SKIPPED"])
def test_a_revision_that_does_not_serve_ends_with_1(server: ControlPlane, project: Path, end: str) -> None:
    server.answers = deploy_answers(server, end)

    ran = runyard(server, "deploy", str(project))

    assert ran.exit_code == 1
    assert f"The revision ended as {end}" in ran.stderr
    assert end == "SKIPPED" or ran.stderr.rstrip().endswith("no such module")


def test_a_deployment_is_reported_after_it_is_created(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    told = runyard(server, "deploy", str(project)).stdout.splitlines()
    assert told[0] == "Created the deployment my-app"

    server.answers["POST /v2/deployments"] = [(403, {"detail": "This needs the role deploy"})]
    ran = runyard(server, "deploy", str(project))
    assert (ran.exit_code, ran.stdout, "needs the role deploy" in ran.stderr) == (1, "", True)


def test_the_reason_of_a_failed_build_is_stated_once(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server, "BUILD_FAILED")
    reason = "graphs: agent.py failed: no"
    server.answers[REVISION] = [(200, {"id": R, "status": "BUILD_FAILED", "status_message": reason})]
    log = [fake.line(1, "loading graphs"), fake.line(2, "step 'graphs' failed: agent.py failed: no", "ERROR")]
    pages = [{"logs": log, "next_offset": "2"}, {"logs": [], "next_offset": "2"}]
    server.answers[BUILD_LOG] = [(200, page) for page in pages]

    ran = runyard(server, "deploy", str(project))
    assert "  loading graphs" in ran.stdout.splitlines()
    assert (ran.stdout + ran.stderr).count("agent.py failed: no") == 1

    server.answers[BUILD_LOG] = [(200, page) for page in pages]
    told = json_lines(runyard(server, "deploy", str(project), "--json"))
    logged = [line["message"] for line in told if line["event"] == "log"]
    assert logged == [line["message"] for line in log], "JSON has the whole log"


def test_a_failure_in_json_is_a_result_alone_that_names_the_step(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server, "BUILD_FAILED")

    ran = runyard(server, "deploy", str(project), "--json")

    assert (ran.exit_code, ran.stderr) == (1, "")
    told = json_lines(ran)
    assert (told[-1]["event"], told[-1]["status"]) == ("result", "failed")
    assert "BUILD_FAILED" in told[-1]["message"]
    assert told[-1]["revision_status"] == "BUILD_FAILED"
    assert told[-1]["log"] == [line["message"] for line in told if line["event"] == "log"]

    server.answers = deploy_answers(server, "BUILD_FAILED")
    reason = "graphs: agent.py failed: ValueError: no: thing"
    server.answers[REVISION] = [(200, {"id": R, "status": "BUILD_FAILED", "status_message": reason})]

    told = json_lines(runyard(server, "deploy", str(project), "--json"))

    assert (told[-1]["step"], told[-1]["reason"]) == ("graphs", reason)


def test_a_deploy_that_takes_too_long_ends_with_3(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    server.answers[REVISION] = [(200, {"id": R, "status": "QUEUED"})]

    ran = runyard(server, "deploy", str(project), "--timeout", "0.2")

    assert ran.exit_code == 3
    assert "still QUEUED after 0.2 s. The build goes on there: `runyard status app`" in ran.stderr


def test_a_deploy_need_not_wait(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)

    ran = runyard(server, "deploy", str(project), "--no-wait", "--json")

    assert ran.exit_code == 0
    assert json_lines(ran)[-1]["status"] == "started"
    assert REVISION not in server.asked


def test_wrong_usage_ends_with_2(server: ControlPlane, project: Path) -> None:
    for arguments, says in (
        (["--ref", "main"], "--ref belongs to --git"),
        (["--type", "big"], "is not one of"),
        (["--prod", "--type", "dev"], "contradict"),
        (["--env-file", "none.env"], "none.env does not exist"),
        (["--no-such-option"], "No such option"),
    ):
        ran = runyard(server, "deploy", str(project), *arguments)
        assert (ran.exit_code, says in ran.stderr) == (2, True), f"{arguments}: {ran.stderr}"
    assert server.asked == []


def test_an_upload_that_breaks_goes_to_another_address(server: ControlPlane, project: Path) -> None:
    """A failed upload is repeated from the start, with a new upload URL and without the API key."""
    server.answers = deploy_answers(server)
    server.answers["PUT /put"] = [(503, {"detail": "a moment"}), (200, None)]

    assert runyard(server, "deploy", str(project), "--no-wait").exit_code == 0

    assert server.asked.count(f"POST /v2/deployments/{D}/upload-url") == 2
    first, second = (
        body for what, body in zip(server.asked, server.bodies, strict=True) if what == "PUT /put"
    )
    assert first == second
    assert set(server.header("PUT /put", "X-Api-Key")) == {None}, "the address is the right to put"


def test_a_deployment_is_named_by_its_option_the_shell_its_variables_or_its_folder(
    server: ControlPlane, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(*option: str) -> str:
        server.answers = deploy_answers(server)
        assert runyard(server, "deploy", str(project), "--no-wait", *option).exit_code == 0
        body = server.body("POST /v2/deployments")
        assert body["secrets"] == []
        return body["name"]

    assert named() == "my-app"
    (project / ".env").write_text("LANGSMITH_DEPLOYMENT_NAME='From File'\n")
    assert named() == "from-file"
    monkeypatch.setenv("LANGSMITH_DEPLOYMENT_NAME", "From Shell")
    assert named() == "from-shell"
    assert named("--name", "Given") == "given"


def test_without_a_name_the_others_mean_what_deploy_makes_here(
    server: ControlPlane, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name, commands use the name that `deploy` derives for the project in this directory."""

    def missed() -> str:
        deployed(server, "DEPLOYED")
        return runyard(server, "status").stderr

    monkeypatch.chdir(project)
    assert f"There is no deployment 'my-app' at {server.url}." in missed()
    (project / ".env").write_text("LANGSMITH_DEPLOYMENT_NAME=Other")
    assert f"There is no deployment 'other' at {server.url}." in missed()
    (project / "langgraph.json").write_text(json.dumps({"env": {"LANGSMITH_DEPLOYMENT_NAME": "third"}}))
    assert f"There is no deployment 'third' at {server.url}." in missed()


def test_an_env_file_that_is_named_and_missing_is_reported(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    (project / "langgraph.json").write_text(json.dumps({"env": "prod.env"}))
    ran = runyard(server, "deploy", str(project), "--no-wait")
    assert "prod.env, the env of langgraph.json, does not exist: no variables are sent" in ran.stdout


# Refused calls


@pytest.mark.parametrize(
    ("status", "detail", "says"),
    [
        (401, "Unknown API key", "does not accept the API key from --api-key. Set RUNYARD_API_KEY"),
        (403, "This needs the role run", "This needs the role run. `runyard keys create --role …` makes"),
        (403, "X-Tenant-Id names none", "X-Tenant-Id names none. Check --org, RUNYARD_ORG"),
        (404, "Not Found", "`runyard list` shows"),
        (409, "A deployment chat exists", "was refused (409): A deployment chat exists."),
        (
            422,
            [{"loc": ["body", "source_config", "repo_url"], "msg": "must be https", "type": "x"}],
            "source_config.repo_url: must be https.",
        ),
        (500, "internal error", "failed (500): internal error. Look at the service's own log."),
    ],
)
def test_a_refusal_is_a_sentence(server: ControlPlane, status: int, detail: Any, says: str) -> None:
    server.answers = {"GET /v2/deployments": [(status, {"detail": detail})]}
    ran = runyard(server, "list")
    assert ran.exit_code == 1
    assert says in ran.stderr
    assert ("The service at " in ran.stderr, f" at {server.url} " in ran.stderr) == (status == 401,) * 2
    assert runyard(server, "list", "--json").stderr == ""


def test_a_service_that_is_not_there_or_is_another_s_is_a_sentence(server: ControlPlane) -> None:
    server.answers = {"GET /v2/deployments": [(200, b"<html>hello")]}
    assert "not JSON" in runyard(server, "list").stderr

    ran = invoke("list", "--url", "http://127.0.0.1:9", "--api-key", "key")
    assert ran.exit_code == 1
    assert "Start it with `runyard up`" in ran.output


def test_a_certificate_of_a_private_authority_is_refused_with_the_variable_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, pair = certified(tmp_path)
    app_there = Flask("tls")
    app_there.add_url_rule("/v2/deployments", view_func=lambda: {"resources": []})
    with serving(app_there, ssl=pair) as port:
        arguments = ["list", "--url", f"https://localhost:{port}", "--api-key", "key"]
        for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            monkeypatch.delenv(variable, raising=False)
        assert "set SSL_CERT_FILE" in invoke(*arguments).stderr

        monkeypatch.setenv("SSL_CERT_FILE", authority)
        assert invoke(*arguments).exit_code == 0


def test_a_busy_service_is_asked_again_with_the_same_key(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    server.answers["POST /v2/deployments"] = [(503, {"detail": "a moment"}), (201, record())]

    assert runyard(server, "deploy", str(project), "--no-wait").exit_code == 0

    first, second = server.header("POST /v2/deployments", "Idempotency-Key")
    assert first == second
    assert first


# logs


def test_logs_are_asked_with_filters_and_printed_oldest_first(server: ControlPlane) -> None:
    deployed(server, "DEPLOYED")
    logs = f"POST /v1/projects/{D}/deploy_logs"
    lines = [fake.line(2, "two\x1b[31m", "ERROR"), fake.line(1, "one")]
    server.answers[logs] = [(200, {"logs": lines, "next_offset": None})]

    ran = runyard(
        server, "logs", "app", "--level", "warning", "--query", "o", "--since", "2026-01-01T00:00:00+00:00"
    )

    assert ran.stdout.splitlines() == [
        "[2023-11-14T22:13:20.001000+00:00] [INFO] one",
        "[2023-11-14T22:13:20.002000+00:00] [ERROR] two�[31m",
    ]
    asked = server.body(logs)
    assert asked == {
        "level": "WARNING", "query": "o", "start_time": "2026-01-01T00:00:00+00:00", "order": "desc", "limit": 100,
    }  # fmt: skip
    assert runyard(server, "logs", "app", "--since", "yesterday").exit_code == 2


def test_logs_name_the_files_that_runyard_dev_deploys(server: ControlPlane, tmp_path: Path) -> None:
    deployed(server, "DEPLOYED")
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    copy = f"{data_dir}/revisions/{D}/project/agent.py"
    lines = [fake.line(1, f'File "{copy}", line 3')]
    server.answers[f"POST /v1/projects/{D}/deploy_logs"] = [(200, {"logs": lines, "next_offset": None})]

    for name, path in (("other", copy), ("app", f"{tmp_path}/edited/agent.py")):
        keep_root(data_dir, name, tmp_path / "edited")
        assert f'File "{path}", line 3' in runyard(server, "logs", "app").stdout
    (told,) = json_lines(runyard(server, "logs", "app", "--json"))
    assert copy in told["message"], "JSON has the text of the service"
    (data_dir / KEPT_ROOT).write_text("[]")
    assert copy in runyard(server, "logs", "app").stdout


def test_an_empty_log_is_said_to_be_empty(server: ControlPlane) -> None:
    deployed(server, "DEPLOYED")
    server.answers[f"POST /v1/projects/{D}/deploy_logs"] = [(200, {"logs": [], "next_offset": None})]
    end = " --follow shows lines as they come.\n"
    for arguments, says in (
        ([], f"There is nothing in the deploy log yet.{end}"),
        (["--level", "error"], f"There is nothing in the deploy log that matches.{end}"),
        (["--json"], ""),
    ):
        ran = runyard(server, "logs", "app", *arguments)
        assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", says), arguments


def test_build_logs_are_the_newest_revision_s(server: ControlPlane) -> None:
    rows = deployed(server, "BUILD_FAILED", "DEPLOYED", active=1)
    logs = f"POST /v1/projects/{D}/revisions/{rows[0]['id']}/build_logs"
    server.answers[logs] = [(200, {"logs": [fake.line(1, "boom")], "next_offset": None})]
    (told,) = json_lines(runyard(server, "logs", "app", "--type", "build", "--json"))
    assert told["message"] == "boom"


def test_following_shows_each_line_once(server: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.deployments.logs.FOLLOW_SECONDS", 0.01)
    one, two, three, four = (fake.line(n, str(n)) for n in range(1, 5))
    server.answers[f"POST /v1/projects/{D}/deploy_logs"] = [
        (200, {"logs": [two, one], "next_offset": None}),
        (200, {"logs": [two, three], "next_offset": "after-3"}),
        (200, {"logs": [], "next_offset": "after-3"}),
        (200, {"logs": [four], "next_offset": "after-4"}),
    ]
    with Client(server.url, "key") as client:
        log = Log(client, D, None, "deploy", {"level": "INFO"})
        told = [*log.newest(100), *islice(log.following(), 2)]
    assert [line["message"] for line in told] == ["1", "2", "3", "4"]
    assert [json.loads(body).get("offset") for body in server.bodies] == [None, None, "after-3", "after-3"]
    assert json.loads(server.bodies[1])["start_time"] == "2023-11-14T22:13:20.002000+00:00"
    assert server.queries == ["", "wait=20", "wait=20", "wait=20"], "the service waits, not we"


# Other commands


def test_a_key_needs_a_running_database_and_a_bad_setting_stops_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = invoke("keys", "create")
    assert ran.exit_code == 1
    assert "runyard up" in ran.output

    monkeypatch.setenv("RUNYARD_PORT", "many")
    ran = invoke("up")
    assert ran.exit_code == 1
    assert "RUNYARD_PORT must be a number" in ran.output


def commands(found: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and all its subcommands, each with the words that call it."""
    yield path, found
    for name, command in getattr(found, "commands", {}).items():
        yield from commands(command, *path, name)


def test_every_command_has_a_help_page_in_which_flags_have_no_type() -> None:
    pages = dict(commands(get_command(app)))
    assert {("deploy",), ("runs", "show"), ("workers", "drain"), ("contexts",)} <= set(pages)
    for path, command in pages.items():
        shown = invoke(*path, "--help", env={"COLUMNS": "200"})
        assert shown.exit_code == 0, shown.output
        assert command.help, path
        assert "<bool>" not in shown.output, path
        assert command.help.split(".")[0].replace("`", "").split()[0] in shown.output, path
        for name, inner in getattr(command, "commands", {}).items():
            assert inner.hidden or name in shown.output, f"{name} of {path}"


def test_json_can_be_printed_on_any_terminal() -> None:
    text = json_text({"text": "ü\x1b[31m\x9b31m\ud800😀"})
    assert text == r'{"text": "ü\u001b[31m\u009b31m\ud800😀"}'
    assert json.loads(text) == {"text": "ü\x1b[31m\x9b31m\ud800😀"}
