"""`runyard run` and `new`, and the output of a deploy on a terminal."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import Result

from cli.deployments.project import Project, keep_root, templates
from cli.deployments.report import Terminal
from cli.runs.transcript import Transcript
from tests.support import commands
from tests.support import control_plane as fake
from tests.support.commands import invoke
from tests.support.control_plane import ControlPlane, D, R, record
from tests.support.waiting import wait_until

THREAD, RUN = "33333333-3333-4333-8333-333333333333", "44444444-4444-4444-8444-444444444444"
ELSEWHERE = "http://elsewhere.invalid"
STREAM = f"POST /d/app/threads/{THREAD}/runs/stream"
STRICTLY = {"strict_resume": True}


@pytest.fixture
def server(nowhere: None, server: ControlPlane) -> ControlPlane:
    """A service with one deployment, whose record names another host. Its run streams `Hello` and succeeds."""
    found = record(source_config={"custom_url": f"{ELSEWHERE}/d/app"}, active_revision_id=R)
    server.answers = {
        "GET /v2/deployments": [(200, {"resources": [found]})],
        "POST /d/app/assistants/search": [(200, [{"graph_id": "agent"}])],
        "POST /d/app/threads": [(200, {"thread_id": THREAD})],
        STREAM: [(200, fake.events(*said("Hel", "lo")))],
        f"GET /d/app/threads/{THREAD}/runs/{RUN}": [(200, {"status": "success"})],
        f"GET /d/app/threads/{THREAD}": [(200, {"status": "idle", "interrupts": {}})],
    }
    server.more_headers = {"Content-Location": f"/threads/{THREAD}/runs/{RUN}"}
    return server


def said(*tokens: str) -> list[tuple[str, Any]]:
    chunks = [[{"type": "AIMessageChunk", "id": "m", "content": text}, {}] for text in tokens]
    return [
        ("metadata", {"run_id": RUN}),
        *(("messages", chunk) for chunk in chunks),
        ("updates", {"answer": {"messages": [], "mood": "fine"}}),
    ]


def runyard(server: ControlPlane, *arguments: str, input: str | None = None) -> Result:
    return commands.runyard(server, "run", *arguments, "--org", "team", input=input)


def test_a_run_is_shown_as_it_streams_and_made_as_by_the_deployment_s_studio(server: ControlPlane) -> None:
    ran = runyard(server, "app", "Good morning")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.splitlines() == ["Hello", '{"mood": "fine"}']
    assert f"--thread {THREAD}" in ran.stderr
    body = server.body(STREAM)
    assert body["input"] == {"messages": [{"role": "user", "content": "Good morning"}]}
    assert (body["assistant_id"], body["stream_mode"]) == ("agent", ["messages-tuple", "updates", "custom"])
    assert server.header(STREAM, "X-Tenant-Id") == ["team"]
    assert server.header(STREAM, "X-Auth-Scheme") == ["langsmith"]
    assert server.header(STREAM, "X-Api-Key") == ["key"]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        (['{"topic": "tea"}'], {"input": {"topic": "tea"}}),
        (["42"], {"input": {"messages": [{"role": "user", "content": "42"}]}}),
        (["-"], {"input": {"topic": "stdin"}}),
        (
            ["--thread", THREAD, "--resume", '{"approve": true}'],
            {**STRICTLY, "command": {"resume": {"approve": True}}},
        ),
        (["--thread", THREAD, "--resume", "yes"], {**STRICTLY, "command": {"resume": "yes"}}),
    ],
)
def test_what_a_run_begins_with(server: ControlPlane, arguments: list[str], sent: dict[str, Any]) -> None:
    ran = runyard(server, "app", *arguments, input='{"topic": "stdin"}')
    assert ran.exit_code == 0, ran.output
    body = server.body(STREAM)
    assert {name: body.get(name) for name in sent} == sent


def test_wrong_usage_starts_nothing(server: ControlPlane) -> None:
    for arguments, says in (
        ([], "Say what to run it with"),
        (['{"topic": '], "looks like JSON and is not"),
        (["--resume", "yes"], "name it with --thread"),
        (["hi", "--resume", "yes", "--thread", THREAD], "either begins with INPUT"),
    ):
        ran = runyard(server, "app", *arguments)
        assert (ran.exit_code, says in ran.stderr) == (2, True), f"{arguments}: {ran.stderr}"
    assert server.asked == []


def test_input_alone_is_for_the_deployment_of_the_project_in_this_directory(
    server: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app").mkdir()
    monkeypatch.chdir(tmp_path / "app")
    assert runyard(server, "Hello there!").exit_code == 0
    assert server.body(STREAM)["input"] == {"messages": [{"role": "user", "content": "Hello there!"}]}


def test_a_thread_and_an_assistant_are_named_by_the_end_of_their_ids(server: ControlPlane) -> None:
    support = {"assistant_id": RUN, "name": "Support", "graph_id": "agent"}
    server.answers["POST /d/app/assistants/search"] = [(200, [support])]
    server.answers["POST /d/app/threads/search"] = [(200, [{"thread_id": THREAD}])]
    for name in ("Support", RUN[-8:], RUN):
        assert runyard(server, "app", "Hello!", "--thread", THREAD[-8:], "-a", name).exit_code == 0
        assert server.body(STREAM)["assistant_id"] == RUN
    assert runyard(server, "app", "Hello!", "-a", "agent").exit_code == 0
    assert server.body(STREAM)["assistant_id"] == "agent"
    other = {**support, "assistant_id": f"{THREAD[:-8]}{RUN[-8:]}", "name": "Sales"}
    server.answers["POST /d/app/assistants/search"] = [(200, [support, other])]
    ran = runyard(server, "app", "Hello!", "-a", RUN[-8:])
    assert (ran.exit_code, f"{RUN}  Support" in ran.stderr, "Sales" in ran.stderr) == (2, True, True)


def test_a_thread_goes_on_with_its_assistant(server: ControlPlane) -> None:
    server.answers["POST /d/app/assistants/search"] = [(200, [{"graph_id": "a"}, {"graph_id": "b"}])]
    thread = {
        "status": "idle",
        "interrupts": {},
        "metadata": {"graph_id": "b", "assistant_id": "the-assistant"},
    }
    server.answers[f"GET /d/app/threads/{THREAD}"] = [(200, thread)]
    assert runyard(server, "app", "Hello!", "--thread", THREAD).exit_code == 0
    assert server.body(STREAM)["assistant_id"] == "the-assistant"


def test_one_of_several_graphs_has_to_be_named(server: ControlPlane) -> None:
    server.answers["POST /d/app/assistants/search"] = [(200, [{"graph_id": "b"}, {"graph_id": "a"}])]
    ran = runyard(server, "app", "hi")
    assert ran.exit_code == 2
    assert "--assistant: a, b" in ran.stderr
    assert runyard(server, "app", "hi", "-a", "b").exit_code == 0


def test_what_does_not_serve_yet_runs_nothing(server: ControlPlane) -> None:
    server.answers["GET /v2/deployments"] = [(200, {"resources": [record()]})]
    ran = runyard(server, "app", "hi")
    assert ran.exit_code == 1
    assert "app does not serve yet. `runyard status app` tells why." in ran.stderr
    assert server.asked == ["GET /v2/deployments"]


def test_a_question_is_shown_with_how_to_answer_and_several_are_answered_by_name(
    server: ControlPlane,
) -> None:
    asked = {"status": "interrupted", "interrupts": {"task": [{"id": "1", "value": {"amount": 120}}]}}
    server.answers[f"GET /d/app/threads/{THREAD}"] = [(200, asked)]
    ran = runyard(server, "app", "hi")
    assert ran.exit_code == 0
    assert '{"amount": 120}' in ran.stdout
    assert f"runyard run app --thread {THREAD} --resume ANSWER" in ran.stderr

    asked = {
        "status": "interrupted",
        "interrupts": {"a": [{"id": "1", "value": 1}], "b": [{"id": "2", "value": 2}]},
    }
    server.answers[f"GET /d/app/threads/{THREAD}"] = [(200, asked)]
    ran = runyard(server, "app", "hi")
    assert ran.exit_code == 0
    assert f"""--thread {THREAD} --resume '{{"1": "ANSWER", "2": "ANSWER"}}'""" in ran.stderr


def test_a_run_and_its_threads_are_those_of_a_preview_that_is_named(server: ControlPlane) -> None:
    row: dict[str, Any] = {"name": "pr-1", "revision_id": R, "url": f"{ELSEWHERE}/d/app--pr-1"}
    server.answers[f"GET /v2/deployments/{D}/previews"] = [(200, {"resources": [row]})]
    calls = [call for call in server.answers if "/v2/" not in call]
    server.answers |= {call.replace("/d/app/", "/d/app--pr-1/"): server.answers[call] for call in calls}
    server.answers[f"DELETE /d/app--pr-1/threads/{THREAD}"] = [(204, None)]

    assert runyard(server, "app--pr-1", "hi").stdout.splitlines()[0] == "Hello"
    deleting = ("threads", "delete", THREAD, "--yes", "--name", "app--pr-1")
    assert commands.runyard(server, *deleting).exit_code == 0
    asked = {call.split()[1].split("/")[1:3][-1] for call in server.asked}
    assert asked == {"deployments", "app--pr-1"}

    assert "app has no preview 'pr-2'" in runyard(server, "app--pr-2", "hi").stderr
    row["url"] = None
    assert "The preview pr-1 of app does not serve yet." in runyard(server, "app--pr-1", "hi").stderr
    named = record(name="app--pr-1", active_revision_id=R)
    server.answers["GET /v2/deployments"] = [(200, {"resources": [named]})]
    assert runyard(server, "app--pr-1", "hi").exit_code == 0, "a deployment has its name before a preview"


@pytest.mark.parametrize(
    ("base", "shown", "below"),
    [
        ("/prefix", f"{ELSEWHERE}/other/d/app", "/prefix/d/app"),
        ("", f"{ELSEWHERE}/d/app/my/api", "/d/app/my/api"),
        ("", "http://app.elsewhere.invalid/my/api", "/d/app/my/api"),
        ("/prefix/", "http://app.elsewhere.invalid", "/prefix/d/app"),
    ],
)
def test_a_deployment_is_called_below_the_service_at_its_mount_prefix(
    server: ControlPlane, base: str, shown: str, below: str
) -> None:
    found = server.answers["GET /v2/deployments"][0][1]["resources"][0]
    found["source_config"]["custom_url"] = shown
    prefix = base.rstrip("/")
    server.answers = {
        call.replace("/d/app", below).replace(" /v2", f" {prefix}/v2"): answers
        for call, answers in server.answers.items()
    }
    server.url += base
    assert runyard(server, "app", "hi").stdout.splitlines()[0] == "Hello"


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("no runner of pool gpu", "`runyard workers` shows the pools."),
        ("runners of pool gpu are drained", "`runyard workers resume WORKER` ends a drain."),
    ],
)
def test_a_run_that_waits_says_why(
    server: ControlPlane, monkeypatch: pytest.MonkeyPatch, reason: str, hint: str
) -> None:
    monkeypatch.setattr("cli.runs.run.WAIT_SECONDS", 0.0)
    held = fake.Held(fake.events(("metadata", {"run_id": RUN})))
    get_run = f"GET /d/app/threads/{THREAD}/runs/{RUN}"
    queue = {"position": 3, "reason": reason, "waiting_seconds": 2.0}
    server.answers[STREAM] = [(200, held)]
    server.answers[get_run] = [(200, {"status": "pending", "queue": queue}), (200, {"status": "success"})]

    def release() -> None:
        wait_until(lambda: get_run in server.asked)
        held.released.set()

    releasing = threading.Thread(target=release)
    releasing.start()
    ran = runyard(server, "app", "hi")
    releasing.join()

    assert ran.exit_code == 0, ran.output
    assert f"The run waits, at position 3: {reason}. {hint}" in ran.stderr


@pytest.mark.parametrize(("answer", "code"), [(204, 130), (404, 130), (403, 1)])
def test_ctrl_c_cancels_a_run_that_the_disconnect_may_have_cancelled_before(
    server: ControlPlane, monkeypatch: pytest.MonkeyPatch, answer: int, code: int
) -> None:
    def interrupt(*event: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Transcript, "show", interrupt)
    server.answers[f"POST /d/app/threads/{THREAD}/runs/{RUN}/cancel"] = [(answer, {"detail": "No such run."})]
    server.answers[f"GET /d/app/threads/{THREAD}/runs/{RUN}"] = [(200, {"status": "interrupted"})]
    assert runyard(server, "app", "hi").exit_code == code


def test_a_run_that_fails_says_why(server: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    keep_root(tmp_path / "data", "app", tmp_path / "edited")
    message = f"it broke in {tmp_path}/data/revisions/{RUN}/project/agent.py"
    broken = [("metadata", {"run_id": RUN}), ("error", {"error": "ValueError", "message": message})]
    server.answers[STREAM] = [(200, fake.events(*broken))]
    server.answers[f"GET /d/app/threads/{THREAD}/runs/{RUN}"] = [(200, {"status": "error"})]
    server.answers[f"GET /d/app/threads/{THREAD}"] = [(200, {"status": "error"})]
    ran = runyard(server, "app", "hi")
    assert ran.exit_code == 1
    assert f"The run ended as error. ValueError: it broke in {tmp_path}/edited/agent.py" in ran.stderr
    assert "`runyard logs app`" in ran.stderr
    ran = runyard(server, "app", "hi", "--json")
    assert (ran.exit_code, ran.stderr) == (1, "")
    last = json.loads(ran.stdout.splitlines()[-1])
    assert (last["event"], last["data"]["error"]) == ("result", f"ValueError: {message}")


def test_a_run_that_is_refused_and_a_field_that_text_cannot_give_are_explained(server: ControlPlane) -> None:
    server.answers[STREAM] = [(200, fake.events(("error", {"error": "KeyError", "message": "'customer'"})))]
    server.answers[f"GET /d/app/threads/{THREAD}/runs/{RUN}"] = [(200, {"status": "error"})]
    server.answers[f"GET /d/app/threads/{THREAD}"] = [(200, {"status": "error"})]
    fields = {"messages": {}, "customer": {}}
    server.answers["GET /d/app/assistants/agent/schemas"] = [(200, {"input_schema": {"properties": fields}})]
    hint = "The input had `messages` only. A graph that takes other fields needs them as JSON."
    assert hint in runyard(server, "app", "hi").stderr
    assert hint not in runyard(server, "app", '{"amount": 5}').stderr
    server.answers[STREAM] = [(200, fake.events(("error", {"error": "KeyError", "message": "'price'"})))]
    assert hint not in runyard(server, "app", "hi").stderr, "the input has no such field"

    server.answers[STREAM] = [(409, {"detail": "The thread is busy."})]
    ran = runyard(server, "app", "hi")
    assert ran.exit_code == 1
    assert "The run was refused (409): The thread is busy." in ran.stderr


def test_events_can_be_had_as_json(server: ControlPlane) -> None:
    ran = runyard(server, "app", "hi", "--json")
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [line["event"] for line in told] == ["metadata", "messages", "messages", "updates", "result"]
    assert told[-1]["data"] == {
        "thread_id": THREAD,
        "run_id": RUN,
        "status": "success",
        "error": None,
        "interrupts": [],
    }


def transcribed(*events: tuple[str, Any], **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, highlight=False, markup=False, width=200)
    transcript = Transcript(console, console, **options)
    for name, data in events:
        transcript.show(name, data)
    transcript.finish()
    return out.getvalue()


def test_a_transcript_keeps_speakers_apart_and_obeys_no_codes() -> None:
    text = transcribed(
        ("messages", [{"type": "human", "id": "0", "content": "hi"}, {}]),
        (
            "messages",
            [{"type": "AIMessageChunk", "id": "1", "content": [{"type": "text", "text": "one"}]}, {}],
        ),
        ("messages|sub:1", [{"type": "ai", "id": "2", "content": "two\x1b[2J"}, {}]),
        ("messages", [{"type": "tool", "name": "look", "content": "found"}, {}]),
        ("updates|sub:1", {"step": None, "__interrupt__": [{"value": 1}]}),
        ("custom", {"done": 3}),
    )
    assert text.splitlines() == ["one", "two�[2J", "⚙ look: found", "✓ sub:1/step", "· custom", '{"done": 3}']


AI = {"type": "ai", "id": "1", "content": "Hello", "response_metadata": {}}


@pytest.mark.parametrize(
    "written",
    [
        [{"role": "ai", "content": "Hello"}],
        [{"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}],
        {"role": "ai", "content": "Hello", "id": "mine"},
        [{"type": "ai", "content": "Hello"}],
        [["ai", "Hello"]],
        ["ai", "Hello"],
        [{"role": "user", "content": "hi"}, "hi", ["human", "hi"], ["ai", "Hello"]],
    ],
)
def test_an_answer_that_is_not_streamed_as_a_message_is_shown(written: Any) -> None:
    assert transcribed(("updates", {"answer": {"messages": written}})).splitlines() == ["✓ answer", "Hello"]


def test_a_message_is_shown_once_however_it_comes() -> None:
    token = ("messages", [{**AI, "type": "AIMessageChunk", "content": "Hel"}, {}])
    other = ("messages", [{**AI, "type": "AIMessageChunk", "content": "lo"}, {}])
    update = ("updates", {"answer": {"messages": [{**AI, "id": "0", "content": "earlier"}, AI]}})
    assert transcribed(token, other, update).splitlines() == ["Hello", "✓ answer"]

    chunk = {**AI, "type": "AIMessageChunk"}
    tokens = [
        ("messages", [{**chunk, "id": "lc_run--1"}, {}]),
        ("messages", [{**chunk, "id": "resp_1", "content": ""}, {}]),
    ]
    renamed = ("updates", {"answer": {"messages": [{**AI, "id": "resp_1"}]}})
    assert transcribed(*tokens, renamed).splitlines() == ["Hello", "✓ answer"]

    parts = [
        ("messages/metadata", {"1": {}}),
        ("messages/partial", [{**AI, "content": "Hel"}]),
        ("messages/partial", [AI]),
        ("messages/complete", [AI]),
    ]
    assert transcribed(*parts, streams_messages=False).splitlines() == ["Hello"]

    twice = ("updates", {"answer": [{"messages": [AI]}, {"messages": [AI], "mood": "fine"}]})
    told = transcribed(twice, streams_messages=False)
    assert told.splitlines() == ["✓ answer", "Hello", '{"mood": "fine"}']


UNSTREAMED = {**AI, "id": "lc_run--1", "content": "not streamed"}
PERSON = {"type": "human", "id": "h", "content": "hi", "response_metadata": {}}


@pytest.mark.parametrize(
    "written",
    [
        [UNSTREAMED],
        UNSTREAMED,
        [PERSON, {**AI, "id": "0", "content": "earlier"}, PERSON, UNSTREAMED],
        [{**AI, "id": "0", "content": "earlier"}, AI, UNSTREAMED],
    ],
)
def test_a_message_object_without_an_event_is_shown_from_the_update(written: Any) -> None:
    token = ("messages", [{**AI, "type": "AIMessageChunk"}, {}])
    text = transcribed(token, ("updates", {"answer": {"messages": written}}))
    assert text.splitlines() == ["Hello", "✓ answer", "not streamed"]


def test_a_terminal_sees_a_bar_and_the_text_as_it_is() -> None:
    out = io.StringIO()
    report = Terminal(Console(file=out, force_terminal=True, highlight=False, markup=False, width=100))
    report.step("Uploading [bold]")
    with report.upload(100) as sent:
        sent(100)
    with report.following():
        report.status("BUILDING", 1.0)
        report.log({"timestamp": 0, "level": "INFO", "message": "[red]x[/red]\x1b[2J"})
    text = out.getvalue()
    assert "Uploading [bold]" in text
    assert "[red]x[/red]�[2J" in text
    assert "BUILDING" in text


# new


@pytest.mark.parametrize("template", templates())
def test_a_new_project_is_one_of_the_templates(template: str, tmp_path: Path) -> None:
    folder = tmp_path / "My Agent"
    ran = invoke("new", str(folder), "--template", template)
    assert ran.exit_code == 0, ran.output
    assert f"runyard dev '{folder}' " in ran.stdout
    names = {name for name, _ in Project.read(folder).files()}
    assert "langgraph.json" in names
    assert ".gitignore" in names
    readme = (folder / "README.md").read_text()
    assert readme.startswith("# My Agent\n")
    assert "examples/" not in readme
    assert max(map(len, readme.splitlines())) <= 130
    assert "/d/my-agent" in readme
    assert "runyard run my-agent " in readme


def test_a_new_javascript_project_has_its_lock_file_and_no_file_of_python(tmp_path: Path) -> None:
    invoke("new", str(tmp_path / "app"), "--template", "typescript")

    names = {str(name) for name, _ in Project.read(tmp_path / "app").files()}
    assert names == {
        ".gitignore", "README.md", "langgraph.json", "package-lock.json", "package.json", "src/agent.ts",
    }  # fmt: skip
    assert "node_modules/" in (tmp_path / "app" / ".gitignore").read_text()


def test_a_new_project_without_the_service_s_packages_is_to_be_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.SERVER_PACKAGE", "a_package_that_is_nowhere")
    ran = invoke("new", str(tmp_path / "agent"))
    assert ("runyard dev" in ran.stdout, "runyard deploy" in ran.stdout) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["full"], "full is not empty", 1),
        (["full/file"], "is not empty", 1),
        (
            ["new", "--template", "none"],
            "approval, chat, copilotkit, digest, members, react, research, retrieval, supervisor, tools, typescript",
            2,
        ),
        ([], "Name the directory", 2),
    ],
)
def test_a_new_project_overwrites_nothing(
    arguments: list[str], says: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/file").write_text("mine")
    ran = invoke("new", *arguments)
    assert (ran.exit_code, Path("full/file").read_text()) == (code, "mine")
    assert says in ran.stderr


def test_the_templates_are_listed() -> None:
    listed = invoke("new", "--list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == [
        "approval", "chat", "copilotkit", "digest", "members", "react", "research", "retrieval", "supervisor",
        "tools", "typescript",
    ]  # fmt: skip
