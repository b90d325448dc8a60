"""The GitHub Action: its task for each event, its pull request comment, and its safety against hostile input."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared import __version__
from tests.support import outside
from tests.support.actions import Action, Ran, commands_of, path_with
from tests.support.control_plane import BUILD_LOG, REVISION, ControlPlane, D, R, record, serving
from tests.support.forwarding import program
from tests.support.github import BOT, GitHub, github
from tests.support.gitlab import Pipeline, gitlab

FOLDER = Path(__file__).parents[3] / "deploy" / "github"
ACTION = Action(FOLDER)
HOSTILE = "x\"; touch pwned; echo '$(touch pwned)`touch pwned`\n::set-output name=task::deploy"
LINES = ["resolving", "::error::not yours", "##[error]nor this", "```", "the key is s3cret-value"]
# Packages without a digest, packages that would be looked up in an index, and an option.
UNSAFE = ("runyard", "0.2.0", "https://example.com/runyard-0.2.0-py3-none-any.whl", "-e", "-r x.whl")
NO_SECRETS = "Nothing is deployed: GitHub gives no secrets to pull requests of forks"
PROJECT = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}


def pull(action: str = "synchronize", *, fork: bool = False, author: str = "ada") -> dict[str, Any]:
    """Return a pull request event with titles and branch names that attempt shell injection."""
    head = {"ref": HOSTILE, "repo": {"full_name": "eve/agents" if fork else "acme/agents"}}
    base = {"ref": "main", "repo": {"full_name": "acme/agents"}}
    about = {"number": 7, "title": HOSTILE, "user": {"login": author}, "head": head, "base": base}
    return {"action": action, "number": 7, "pull_request": about}


@dataclass
class Bench:
    """A repository with a project, the service and GitHub."""

    folder: Path
    service: ControlPlane
    github: GitHub
    runyard: Path
    runs: int = 0

    def environment(self, event_name: str = "pull_request") -> dict[str, str]:
        return {
            "PATH": path_with(self.runyard),
            "HOME": str(self.folder),
            "GITHUB_API_URL": self.github.url,
            "GITHUB_REPOSITORY": "acme/agents",
            "GITHUB_EVENT_NAME": event_name,
            "GITHUB_HEAD_REF": HOSTILE,
        }

    def run(self, event: dict[str, Any], event_name: str = "pull_request", **inputs: str) -> Ran:
        self.runs += 1
        given = {"url": self.service.url, "api-key": "ryd_key", "name": "app", "package": "installed"}
        ran = ACTION.run(
            self.folder / "repository",
            self.folder / f"runner-{self.runs}",
            inputs={**given, **{name.replace("_", "-"): value for name, value in inputs.items()}},
            event=event,
            env=self.environment(event_name),
            token="workflow-token",
        )
        assert not list(self.folder.rglob("pwned")), "what a stranger named was executed"
        return ran

    def comment(self, event: dict[str, Any], token: str = "workflow-token") -> Ran:
        """Run the step that comments alone, after a deploy that succeeded."""
        self.runs += 1
        record = self.folder / "record.json"
        record.write_text(
            json.dumps({"status": "succeeded", "name": "app-pr-7", "url": "u", "revision_id": R})
        )
        env = {**self.environment(), "RECORD": str(record), "INPUT_GITHUB_TOKEN": token}
        scratch = self.folder / f"runner-{self.runs}"
        return only(ACTION.described["runs"]["steps"][-1]).run(
            self.folder, scratch, inputs={}, event=event, env=env
        )


def only(step: Mapping[str, Any]) -> Action:
    """Return the action with a single step, which takes its variables from its caller."""
    action = Action(FOLDER)
    action.described = {
        "inputs": {},
        "outputs": {},
        "runs": {"steps": [{**step, "if": "always()", "env": {}}]},
    }
    return action


def installing() -> Action:
    """Return the action with the step that installs the command line alone."""
    return only(ACTION.described["runs"]["steps"][2])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "langgraph.json").write_text(json.dumps(PROJECT))
    (tmp_path / "bin").mkdir()
    with serving() as service, github() as hub, program(tmp_path / "bin") as runyard:
        yield Bench(tmp_path, service, hub, runyard)


def answer(service: ControlPlane, status: str, reason: str | None = None) -> None:
    """Prepare the service's responses: a build with this status, and a deployment that exists afterwards."""
    name = "app-pr-7"
    found = record(name=name, latest_revision_id=R, latest_revision_number=3)
    lines = [{"timestamp": n, "level": "INFO", "message": line} for n, line in enumerate(LINES, 1)]
    serving_at = {**found, "source_config": {"custom_url": f"{service.url}/d/{name}"}}
    service.answers = {
        "GET /v2/deployments": [(200, {"resources": []}), (200, {"resources": [found]})],
        "POST /v2/deployments": [(201, found)],
        f"POST /v2/deployments/{D}/upload-url": [
            (200, {"upload_url": f"{service.url}/upload", "object_path": "here", "upload_headers": {}})
        ],
        "PUT /upload": [(200, None)],
        f"PATCH /v2/deployments/{D}": [(200, found)],
        f"GET /v2/deployments/{D}": [(200, serving_at)],
        f"DELETE /v2/deployments/{D}": [(204, None)],
        REVISION: [(200, {"id": R, "status": status, "status_message": reason})],
        BUILD_LOG: [(200, {"logs": lines, "next_offset": "x"}), (200, {"logs": [], "next_offset": "x"})],
    }


def test_a_pull_request_has_one_comment_however_often_it_is_deployed(bench: Bench) -> None:
    answer(bench.service, "BUILD_FAILED", "graphs: agent.py failed: ValueError: s3cret-value")
    variables = "TOKEN=s3cret-value\n# a note\nMODE=a\n"

    failed = bench.run(pull("opened"), env=variables)

    assert failed.has_failed
    assert failed.outputs["status"] == "failed"
    assert failed.outputs["revision-id"] == R
    (said,) = bench.github.by(BOT)
    assert "the step `graphs` failed" in said
    assert "````text\nresolving\n" in said, "a fence that the log does not end"
    assert "the key is ***" in said
    assert "s3cret-value" not in said + failed.summary + json.dumps(failed.outputs)
    assert [line for line in commands_of(failed.log) if "not yours" in line or "nor this" in line] == []
    assert bench.service.body(f"PATCH /v2/deployments/{D}")["secrets"] == [
        {"name": "TOKEN", "value": "s3cret-value"},
        {"name": "MODE", "value": "a"},
    ]
    assert bench.service.body("POST /v2/deployments")["name"] == "app-pr-7"

    answer(bench.service, "DEPLOYED")
    passed = bench.run(pull())

    assert not passed.has_failed, passed.log
    assert passed.outputs == {
        "status": "succeeded",
        "name": "app-pr-7",
        "deployment-id": D,
        "revision-id": R,
        "url": f"{bench.service.url}/d/app-pr-7",
    }
    (said,) = bench.github.by(BOT)
    assert f"**app-pr-7** serves at {bench.service.url}/d/app-pr-7 (revision v3)." in said
    assert said.partition("\n")[2].strip() == passed.summary.strip()
    assert not list(bench.folder.rglob("tmp*")), "the file with the variables"

    bench.service.answers["GET /v2/deployments"] = [(200, {"resources": [record(name="app-pr-7")]})]
    closed = bench.run(pull("closed"))

    assert (closed.has_failed, closed.outputs["status"]) == (False, "deleted")
    assert f"DELETE /v2/deployments/{D}" in bench.service.asked
    (said,) = bench.github.by(BOT)
    assert "app-pr-7 is deleted" in said

    bench.service.answers["GET /v2/deployments"] = [(200, {"resources": []})]
    assert not bench.run(pull("closed")).has_failed, "somebody was faster"


def answer_replay(service: ControlPlane, preview: str, *, verdict: str = "failed") -> str:
    """Prepare a preview of the deployment `app` whose replay has this verdict. Returns the preview's address."""
    answer(service, "DEPLOYED")
    found = record(name="app", latest_revision_id=R, latest_revision_number=3)
    unknown = {side: dict.fromkeys(("median", "p95", "total")) for side in ("original", "replay")}
    replay_id, counts = R, dict.fromkeys(("waiting", "running", "same", "changed", "diverged", "skipped"), 0)
    replay = {
        "id": replay_id, "deployment_id": D, "revision_id": R, "revision_number": 4, "status": "done", "reason": None,
        "verdict": verdict, "fail_on": "errors>0", "tools": "recorded", "models": "live", "seed": 1,
        "counts": {**counts, "total": 1, "failed": 1}, "ended_at": "2026-01-01T00:00:00Z", "summary": {
            "duration_seconds": unknown, "tokens": unknown, "cost": unknown,
            "scores": {}, "skipped": {},
            "rules": [{"rule": "errors>0", "value": 1, "limit": 0, "original": 0, "failed": verdict == "failed"}],
        },
    }  # fmt: skip
    address = f"{service.url}/d/app--{preview}"
    service.answers |= {
        "GET /v2/deployments": [(200, {"resources": [found]})],
        f"POST /v2/deployments/{D}/revisions": [(201, {"id": R, "number": 4})],
        f"GET /v2/deployments/{D}/previews": [
            (200, {"resources": [{"name": preview, "revision_id": R, "url": address}]})
        ],
        f"POST /v2/deployments/{D}/replays": [(201, replay)],
        f"DELETE /v2/deployments/{D}/previews/{preview}": [(204, None)],
    }
    return address


def test_a_pull_request_is_tested_on_past_runs_of_the_deployment(bench: Bench) -> None:
    address = answer_replay(bench.service, "pr-7")

    ran = bench.run(pull(), replay="20", fail_on="errors>0")

    assert (ran.has_failed, ran.outputs["status"]) == (True, "replay_failed")
    assert bench.service.body(f"POST /v2/deployments/{D}/replays") == {
        "revision": R,
        "sample": 20,
        "fail_on": "errors>0",
    }
    (said,) = bench.github.by(BOT)
    assert f"serves at {address} (revision v4)" in said
    assert "Replay of past runs: Failed: errors>0." in said
    assert "1 cases: 1 failed" in said

    closed = bench.run(pull("closed"), replay="20", fail_on="errors>0")
    assert (closed.has_failed, closed.outputs["status"]) == (False, "deleted"), closed.log
    assert bench.github.by(BOT)[0].endswith("The preview pr-7 of app is deleted.")
    assert f"DELETE /v2/deployments/{D}/previews/pr-7" in bench.service.asked
    assert f"DELETE /v2/deployments/{D}" not in bench.service.asked


def test_a_push_is_promoted_only_if_its_replay_passes(bench: Bench) -> None:
    promote = f"POST /v2/deployments/{D}/traffic/promote"
    pipeline, project = Pipeline(FOLDER.parent / "gitlab" / "runyard.yml"), bench.folder / "repository"
    env = {
        "PATH": path_with(),
        "HOME": str(bench.folder),
        "RUNYARD_URL": bench.service.url,
        "RUNYARD_API_KEY": "ryd_key",
        "RUNYARD_NAME": "app",
        "RUNYARD_REPLAY": "20",
        "RUNYARD_FAIL_ON": "errors>0",
        "RUNYARD_PROMOTE": "true",
    }
    for verdict, code, status in (("failed", 3, "replay_failed"), ("passed", 0, "succeeded")):
        address = answer_replay(bench.service, "ci", verdict=verdict)
        bench.service.answers[promote] = [(200, record(name="app"))]
        served = record(name="app", source_config={"custom_url": f"{bench.service.url}/d/app"})
        bench.service.answers["GET /v2/deployments"] = [(200, {"resources": [served]})]
        bench.service.answers[f"GET /v2/deployments/{D}"] = [(200, served)]
        bench.service.answers[f"GET /v2/deployments/{D}/revisions"] = [(200, {"resources": []})]

        ran = bench.run({}, replay="20", fail_on="errors>0", promote="true")

        assert (ran.has_failed, ran.outputs["status"], ran.outputs["url"]) == (bool(code), status, address)
        assert (promote in bench.service.asked) == (verdict == "passed")
        bench.service.asked.clear()

        job = pipeline.run("runyard-deploy", project, env)

        assert job.code == code, job.log
        assert (promote in bench.service.asked) == (verdict == "passed")
        bench.service.asked.clear()
    without_rule = bench.run({}, replay="20", promote="true")
    assert (without_rule.has_failed, "promote needs replay and fail-on" in without_rule.log) == (True, True)
    assert bench.service.asked == []


def test_a_merge_request_is_tested_on_past_runs_of_the_deployment(bench: Bench) -> None:
    pipeline, project = Pipeline(FOLDER.parent / "gitlab" / "runyard.yml"), bench.folder / "repository"
    env = {
        "PATH": path_with(bench.runyard),
        "HOME": str(bench.folder),
        "RUNYARD_URL": bench.service.url,
        "RUNYARD_API_KEY": "ryd_key",
        "RUNYARD_NAME": "app",
        "RUNYARD_REPLAY": "20",
        "RUNYARD_FAIL_ON": "errors>0",
        "CI_MERGE_REQUEST_IID": "3",
        "CI_MERGE_REQUEST_PROJECT_ID": "1",
        "CI_JOB_URL": "https://gitlab.example.com/jobs/5",
    }
    address = answer_replay(bench.service, "mr-3")

    with gitlab() as hub:
        hub.add("<!-- runyard replay -->\nby somebody else", "eve")
        for n in range(100):
            hub.add(f"comment {n}", "ann")
        env |= {"CI_API_V4_URL": hub.url, "RUNYARD_GITLAB_TOKEN": "bot"}

        ran = pipeline.run("runyard-replay", project, env)

        assert (ran.code, ran.dotenv) == (3, {"RUNYARD_ADDRESS": address}), ran.log
        assert bench.service.body(f"POST /v2/deployments/{D}/replays") == {
            "revision": R,
            "sample": 20,
            "fail_on": "errors>0",
        }
        (said,) = [note["body"] for note in hub.notes if note["author"]["id"] == "bot"]
        assert f"**app** serves mr-3 at {address} (revision v4)." in said
        assert "Replay of past runs: Failed: errors>0." in said
        assert "1 cases: 1 failed" in said

        answer(bench.service, "BUILD_FAILED", "graphs: agent.py failed: ValueError: s3cret-value")
        bench.service.answers |= {
            "GET /v2/deployments": [(200, {"resources": [record(name="app", latest_revision_id=R)]})],
            f"POST /v2/deployments/{D}/revisions": [(201, {"id": R, "number": 5})],
        }
        ran = pipeline.run("runyard-replay", project, env)

        assert (ran.code, ran.dotenv) == (1, {}), ran.log
        (said,) = [note["body"] for note in hub.notes if note["author"]["id"] == "bot"]
        assert said.endswith(
            "The preview mr-3 was not tested on past runs: see [the job](https://gitlab.example.com/jobs/5)."
        )

    answer_replay(bench.service, "mr-3")
    ran = pipeline.run("runyard-replay", project, env)
    assert (ran.code, "The merge request has no comment: " in ran.log) == (3, True), "GitLab is not reached"
    ran = pipeline.run("runyard-preview-delete", project, env)
    assert ran.code == 0, ran.log
    assert f"DELETE /v2/deployments/{D}/previews/mr-3" in bench.service.asked
    assert f"DELETE /v2/deployments/{D}" not in bench.service.asked


def test_a_pull_request_without_secrets_passes_with_the_reason(bench: Bench) -> None:
    ran = bench.run(pull(fork=True), api_key="", url="")

    assert not ran.has_failed
    assert ran.outputs["status"] == "skipped"
    assert ran.steps == ["See what is to be done"]
    assert NO_SECRETS in ran.log
    assert (bench.service.asked, bench.github.comments) == ([], [])


def test_the_first_step_refuses_what_cannot_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {
        "MODE": "auto",
        "PREVIEW": "true",
        "PROMOTE": "false",
        "API_KEY": "ryd_key",
        "URL": "http://service.example",
    }
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(tmp_path / "event.json"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.syspath_prepend(FOLDER)
    for event, event_name, inputs, code, why in (
        (pull(author="dependabot[bot]"), "pull_request", {"API_KEY": "", "URL": ""}, 0, NO_SECRETS),
        (pull("closed", fork=True), "pull_request", {"API_KEY": "", "URL": ""}, 0, NO_SECRETS),
        ({}, "push", {"API_KEY": ""}, 1, "api-key is empty"),
        (pull(), "pull_request", {"API_KEY": ""}, 1, "api-key is empty"),
        ({}, "push", {"URL": ""}, 1, "url is empty"),
        ({}, "push", {"MODE": "remove"}, 1, "mode must be auto, deploy or delete"),
        ({}, "push", {"PREVIEW": "yes"}, 1, "preview must be true or false"),
        ({}, "push", {"MODE": "delete"}, 1, "no other deployment is deleted by a pipeline"),
        (pull(), "pull_request", {"MODE": "delete", "PREVIEW": "false"}, 1, "no other deployment is deleted"),
        (pull(fork=True), "pull_request_target", {}, 1, "whose code is anybody's"),
    ):
        (tmp_path / "event.json").write_text(json.dumps(event))
        monkeypatch.setenv("GITHUB_EVENT_NAME", event_name)
        for name, value in {**given, **inputs}.items():
            monkeypatch.setenv(f"INPUT_{name}", value)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(FOLDER / "plan.py"), run_name="__main__")
        assert (ended.value.code, why in capsys.readouterr().out) == (code, True), why


def test_a_step_that_refuses_its_inputs_ends_the_action(bench: Bench) -> None:
    ran = bench.run({}, "push", wait_timeout="soon")

    assert ran.has_failed
    assert "wait-timeout must be a number of seconds" in ran.log
    assert bench.service.asked == []


def test_what_a_caller_names_is_an_argument_and_nothing_else(bench: Bench) -> None:
    answer(bench.service, "DEPLOYED")

    ran = bench.run({}, "push", name=HOSTILE, directory="--help")

    assert ran.has_failed
    assert "langgraph.json does not exist" in ran.log
    assert bench.service.asked == []


def test_it_deploys_under_its_own_name_outside_of_pull_requests(bench: Bench) -> None:
    answer(bench.service, "DEPLOYED")

    ran = bench.run({"ref": "refs/heads/main"}, "push", wait_timeout="0", pool="gpu")

    assert not ran.has_failed, ran.log
    assert ran.outputs["status"] == "started"
    body = bench.service.body("POST /v2/deployments")
    assert (body["name"], body["pool"]) == ("app", "gpu")
    assert bench.github.comments == []


def test_a_comment_of_somebody_else_is_left_alone(bench: Bench) -> None:
    for n in range(150):
        bench.github.add(7, f"remark {n}", "ada")
    imitated = bench.github.add(7, "<!-- runyard app-pr-7 -->\nmine", "eve")
    bench.github.fails = 1

    for event in (pull("opened"), pull()):
        assert not bench.comment(event).has_failed
        assert len(bench.github.by(BOT)) == 1, "also when GitHub fails once"

    assert imitated["body"].endswith("mine")

    bench.github.writers["own-token"] = "deployer"
    for _ in range(2):
        assert not bench.comment(pull(), "own-token").has_failed
    assert len(bench.github.by("deployer")) == 1


def test_a_token_that_may_not_comment_fails_nothing(bench: Bench) -> None:
    ran = bench.comment(pull(), "read-only")

    assert not ran.has_failed
    assert "::warning title=runyard::The pull request has no comment: GitHub answers 403." in ran.log
    assert "permissions: pull-requests: write" in ran.log


def test_a_service_that_does_not_answer_is_a_sentence(bench: Bench) -> None:
    ran = bench.run(pull(), url="http://127.0.0.1:9")

    assert ran.has_failed
    assert "http://127.0.0.1:9 does not answer" in bench.github.by(BOT)[0]


@pytest.mark.parametrize("with_uv", [True, pytest.param(False, marks=pytest.mark.release)], ids=["uv", "pip"])
@pytest.mark.parametrize(
    "package",
    [
        "address",
        "changed",
        pytest.param("path", marks=pytest.mark.release),
        pytest.param("", marks=pytest.mark.release, id="checkout"),
    ],
)
def test_it_installs_nothing_but_the_command(bench: Bench, with_uv: bool, package: str) -> None:
    wheel = a_wheel(bench.folder / "wheels")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    tools = python3(bench.folder / "tools")
    if with_uv:
        (tools / "uv").symlink_to(Path(sys.executable).parent / "uv")
    (bench.folder / "runyard").mkdir()
    (bench.folder / "runyard" / "__init__.py").write_text("raise ImportError('the project was imported')\n")

    with wheels(wheel) as url:
        env = {
            **without_runyard(os.environ),
            "PATH": f"{tools}{os.pathsep}{os.defpath}",
            "INPUT_PACKAGE": {
                "path": str(wheel),
                "address": f"{url}/{wheel.name}#sha256={digest}",
                "changed": f"{url}/{wheel.name}#sha256={'0' * 64}",
            }.get(package, ""),
        }
        ran = installing().run(bench.folder, bench.folder / "runner", inputs={}, event={}, env=env)

    assert ran.has_failed is (package == "changed"), ran.log
    place = (bench.folder / "runner" / "path").read_text().split()
    if package == "changed":
        assert (place, "Installed" in ran.log) == ([], False)
        return
    assert f"Installed runyard {'9.8.7' if package else __version__}." in ran.log
    assert os.listdir(*place) == ["runyard"]


def python3(folder: Path) -> Path:
    """Create a folder that contains only a `python3`, for the front of a PATH."""
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "python3").chmod(0o755)
    return folder


@contextmanager
def wheels(wheel: Path) -> Iterator[str]:
    """Serve one wheel file. Yields the server's URL."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "application/zip")])
        return [wheel.read_bytes()]

    with outside.serving(app) as port:
        yield f"http://127.0.0.1:{port}"


def without_runyard(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the service's settings and without Python's own variables."""
    return {name: value for name, value in environment.items() if not name.startswith(("RUNYARD_", "PYTHON"))}


def a_wheel(folder: Path) -> Path:
    """Build a package named `runyard` whose command prints its version."""
    folder.mkdir()
    path = folder / "runyard-9.8.7-py3-none-any.whl"
    info = "runyard-9.8.7.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("runyard_stand_in.py", "def main(): print('9.8.7')\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: runyard\nVersion: 9.8.7\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nrunyard = runyard_stand_in:main\n")
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in wheel.namelist()))
    return path


def test_no_job_installs_a_package_by_its_name(tmp_path: Path) -> None:
    pipeline, install = Pipeline(FOLDER.parent / "gitlab" / "runyard.yml"), installing()
    env = {"PATH": os.defpath, "RUNYARD_API_KEY": "ryd_key"}
    for package in UNSAFE:
        job = pipeline.run("runyard-deploy", tmp_path, {**env, "RUNYARD_PACKAGE": package})
        assert (job.code, "RUNYARD_PACKAGE must be the wheel of a release" in job.log) == (1, True), package

        ran = install.run(
            tmp_path, tmp_path / "runner", inputs={}, event={}, env={**env, "INPUT_PACKAGE": package}
        )
        assert (ran.has_failed, "package must be the path of a wheel" in ran.log) == (True, True), package
    assert pipeline.run("runyard-deploy", tmp_path, env).code == 1, "no package"


@pytest.mark.release
def test_gitlab_s_job_installs_the_wheel_that_has_the_digest(tmp_path: Path) -> None:
    pipeline = Pipeline(FOLDER.parent / "gitlab" / "runyard.yml")
    wheel = a_wheel(tmp_path / "wheels")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    env = {
        "PATH": f"{python3(tmp_path / 'tools')}{os.pathsep}{os.defpath}",
        "RUNYARD_API_KEY": "ryd_key",
        "TMPDIR": str(tmp_path),
    }

    with wheels(wheel) as url:
        for package, code in (
            (f"{url}/{wheel.name}#sha256={digest}", 0),
            (f"{url}/{wheel.name}#sha256={'0' * 64}", 1),
        ):
            ran = pipeline.run("runyard-preview-delete", tmp_path, {**env, "RUNYARD_PACKAGE": package})
            assert (ran.code, "9.8.7" in ran.log.splitlines()) == (code, code == 0), ran.log


def test_the_example_fits_the_action() -> None:
    example = yaml.safe_load((FOLDER / "example-workflow.yml").read_text())
    events = example[True]  # YAML 1.1 reads the key `on` as True
    (job,) = example["jobs"].values()
    (step,) = [step for step in job["steps"] if "runyard" in step.get("uses", "")]

    assert set(step["with"]) <= set(ACTION.described["inputs"])
    assert {name for name, one in ACTION.described["inputs"].items() if one.get("required")} <= set(
        step["with"]
    )
    assert "closed" in events["pull_request"]["types"]
    assert "pull_request_target" not in events
    assert example["permissions"] == {"contents": "read", "pull-requests": "write"}
