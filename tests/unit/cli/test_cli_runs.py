"""`runyard runs` and `threads`: their requests to a deployment, their output and their exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import Result

from cli.client import names
from shared.models import REVISION_ENDS, RevisionStatus, RunStatus
from shared.runs import read as run_record
from tests.support.commands import runyard
from tests.support.control_plane import ControlPlane, R, record

pytestmark = pytest.mark.usefixtures("nowhere")

T, RUN = "33333333-3333-4333-8333-3333aaaaaaaa", "44444444-4444-4444-8444-4444bbbbbbbb"
OTHER = "55555555-5555-4555-8555-5555cccccccc"
THREAD = f"/d/app/threads/{T}"


def row(run_id: str = RUN, status: str = "error", minute: int = 0, **more: Any) -> dict[str, Any]:
    at = f"2026-01-01T00:{minute:02d}:00+00:00"
    return {
        "run_id": run_id, "thread_id": T, "status": status, "created_at": at, "updated_at": at,
        "kwargs": {"input": {"topic": "tea"}}, **more,
    }  # fmt: skip


def band(
    id: str, parent: str | None, kind: str, name: str, begin: int, end: int, **more: Any
) -> dict[str, Any]:
    return {
        "id": id,
        "parent": parent,
        "kind": kind,
        "name": name,
        "started_at": f"2026-01-01T00:00:{begin:02d}+00:00",
        "ended_at": f"2026-01-01T00:00:{end:02d}+00:00",
        "status": "success",
        "detail": None,
        **more,
    }


FAILED = row(error={"error": "ValueError", "message": "it broke"})
SHOWN = {
    "thread_id": T,
    "status": "error",
    "created_at": "2026-01-01T00:00:00+00:00",
    "updated_at": "2026-01-01T00:00:00+00:00",
    "metadata": {"graph_id": "agent"},
    "interrupts": {"task": [{"value": "Who?"}]},
    "values": {"messages": [{"type": "ai", "content": "Hello"}], "topic": "tea"},
}
ASSISTANT = {"assistant_id": "66666666-6666-4666-8666-6666dddddddd", "name": "Support", "graph_id": "agent"}
LINE = {
    "from": "2026-01-01T00:00:00+00:00",
    "until": "2026-01-01T00:00:10+00:00",
    "bands": [
        band("q", None, "queue", "Waits in the queue", 0, 5),
        band("a", None, "attempt", "Attempt 1", 5, 10, status="error", detail="ValueError: it broke"),
        band("n", "a", "node", "brew", 6, 9),
    ],
}
CHECKPOINT = {
    "checkpoint": {"checkpoint_id": OTHER},
    "metadata": {"step": 1, "source": "loop"},
    "created_at": "2026-01-01T00:00:00+00:00",
    "next": ["ask"],
}


@pytest.fixture
def served(server: ControlPlane) -> ControlPlane:
    """A serving deployment with one thread and two runs."""
    found = record(active_revision_id=R, source_config={"custom_url": "http://elsewhere.invalid/d/app"})
    server.answers = {
        "GET /v2/deployments": [(200, {"resources": [found]})],
        "POST /d/app/threads/search": [(200, [SHOWN])],
        f"GET {THREAD}/runs": [(200, [row(OTHER, "success", 1), row()])],
        f"GET {THREAD}/runs/{RUN}": [(200, row())],
        f"GET {THREAD}/runs/{RUN}/timeline": [(200, LINE)],
        "POST /d/app/runs/search": [(200, [row(OTHER, "success", 1), FAILED])],
        "POST /d/app/assistants/search": [(200, [ASSISTANT])],
        f"GET {THREAD}": [(200, SHOWN)],
        f"POST {THREAD}/history": [(200, [CHECKPOINT])],
        f"DELETE {THREAD}": [(204, None)],
    }
    return server


def typed(server: ControlPlane, *words: str) -> Result:
    """Run the command with `app` as its deployment."""
    return runyard(server, *words[:2], "app", *words[2:])


def test_the_deployment_is_an_argument_and_one_argument_alone_is_the_run_or_thread(
    served: ControlPlane,
) -> None:
    for words in (
        ["runs", "show", "app", RUN],
        ["runs", "show", RUN, "--name", "app"],
        ["threads", "show", T, "-n", "app"],
    ):
        assert runyard(served, *words).exit_code == 0, words
    for words, says in (
        (["runs", "show", "-n", "app"], "RUN is missing."),
        (["threads", "delete"], "THREAD is missing."),
        (["runs", "list", "app", "-n", "app"], "The deployment is given twice"),
        (["runs", "show", "app", RUN, "-n", "app"], "The deployment is given twice"),
    ):
        ran = runyard(served, *words)
        assert (ran.exit_code, says in ran.stderr) == (2, True), f"{words}: {ran.output}"


def test_the_newest_runs_are_found_by_one_search_with_their_reasons(served: ControlPlane) -> None:
    rows = json.loads(typed(served, "runs", "list", "--json").stdout)
    assert [one["run_id"] for one in rows] == [OTHER, RUN]
    assert served.body("POST /d/app/runs/search") == {"limit": 20, "status": [str(one) for one in RunStatus]}
    assert len([call for call in served.asked if call.startswith(("GET /d/app/", "POST /d/app/"))]) == 1
    lines = typed(served, "runs", "list").stdout.splitlines()[1:]
    assert [line.split()[3] for line in lines] == ["success", "error"]
    assert "ValueError: it broke" in lines[1]


def test_a_deployment_with_an_authorization_of_its_own_is_asked_as_by_its_studio(
    served: ControlPlane,
) -> None:
    typed(served, "runs", "list")
    assert served.header("POST /d/app/runs/search", "X-Auth-Scheme") == ["langsmith"]
    assert served.header("GET /v2/deployments", "X-Auth-Scheme") == [None]


def test_runs_are_listed_by_status_and_thread(served: ControlPlane) -> None:
    typed(served, "runs", "list", "--status", "error")
    assert served.body("POST /d/app/runs/search") == {"limit": 20, "status": "error"}
    typed(served, "runs", "list", "--thread", T, "--status", "error")
    assert f"GET {THREAD}/runs" in served.asked


def test_runs_are_listed_by_feedback(served: ControlPlane) -> None:
    filters = {
        "thumbs": {"key": "thumbs"},
        "thumbs<0.5": {"key": "thumbs", "below": 0.5},
        "a<b>=-2": {"key": "a<b", "at_least": -2.0},
        "x>1": {"key": "x>1"},
    }
    for text, expected in filters.items():
        typed(served, "runs", "list", "--feedback", text)
        assert served.body("POST /d/app/runs/search")["feedback"] == expected
    assert typed(served, "runs", "list", "--feedback", "x", "--thread", T).exit_code == 2


def test_a_run_is_shown_with_its_feedback(served: ControlPlane) -> None:
    said = {"key": "thumbs", "score": 0.0, "value": None, "comment": "no\n\x1b[2J", "correction": {"a": 1}}
    served.answers[f"GET {THREAD}/runs/{RUN}/feedback"] = [(200, [said])]
    assert 'Feedback    thumbs 0.0 no �[2J {"a": 1}' in typed(served, "runs", "show", RUN).stdout


@pytest.mark.parametrize("id", [RUN, RUN[-8:], RUN[:6]])
def test_a_run_is_shown_with_its_input_and_its_error(served: ControlPlane, id: str) -> None:
    told = typed(served, "runs", "show", id).stdout
    assert "tea" in told
    assert "ValueError: it broke" in told
    assert json.loads(typed(served, "runs", "show", id, "--json").stdout)["run_id"] == RUN


def test_a_run_is_shown_with_its_timeline(served: ControlPlane) -> None:
    lines = [line.split() for line in typed(served, "runs", "show", RUN).stdout.splitlines()]

    assert ["Waits", "in", "the", "queue", "queue", "0", "ms", "5.0", "s", "━━━━━━━━━━━━"] in lines
    assert ["brew", "node", "6.0", "s", "3.0", "s", "━━━━━━━"] in lines
    (attempt,) = [line for line in lines if line[:2] == ["Attempt", "1"]]
    assert attempt[-4:] == ["error,", "ValueError:", "it", "broke"]


def test_a_run_is_shown_without_a_timeline_by_a_service_that_has_none(served: ControlPlane) -> None:
    served.answers[f"GET {THREAD}/runs/{RUN}/timeline"] = [(404, {"detail": "Not found"})]

    ran = typed(served, "runs", "show", RUN)
    assert (ran.exit_code, "tea" in ran.stdout, "Timeline" in ran.stdout) == (0, True, False)


def test_a_pending_run_is_shown_with_the_reason_why_it_waits(served: ControlPlane) -> None:
    queue = {"position": 3, "waiting_seconds": 2.0, "reason": "runners are full"}
    served.answers[f"GET {THREAD}/runs/{RUN}"] = [(200, row(status="pending", queue=queue))]

    assert "runners are full" in typed(served, "runs", "show", RUN).stdout


@pytest.mark.parametrize(
    ("waits_for", "words"),
    [("answer", "success, waits for an answer"), ("resume", "success, waits to be resumed")],
)
def test_a_run_that_stopped_for_a_person_says_what_it_waits_for(
    served: ControlPlane, waits_for: str, words: str
) -> None:
    stopped = row(status="success", waits_for=waits_for)
    served.answers["POST /d/app/runs/search"] = [(200, [stopped])]
    served.answers[f"GET {THREAD}/runs/{RUN}"] = [(200, stopped)]

    assert words in " ".join(typed(served, "runs", "list").stdout.split())
    assert words in typed(served, "runs", "show", RUN).stdout


def test_a_run_that_is_not_there_is_a_sentence(served: ControlPlane) -> None:
    ran = typed(served, "runs", "show", "dead")
    assert (ran.exit_code, "There is no run 'dead' among the newest" in ran.stderr) == (1, True)
    assert typed(served, "runs", "show", "nonsense").exit_code == 2
    served.answers["POST /d/app/runs/search"] = [(200, [row(), row(f"{OTHER[:-8]}bbbbbbbb")])]
    several = typed(served, "runs", "show", "bbbbbbbb")
    assert (several.exit_code, "2 runs match 'bbbbbbbb'" in several.stderr) == (2, True)
    assert f"{RUN}  error, 2026-01-01" in several.stderr
    assert f"{OTHER[:-8]}bbbbbbbb  error" in several.stderr


def test_a_run_has_the_name_of_its_assistant_or_else_of_its_graph(served: ControlPlane) -> None:
    of_assistant = row(assistant_id=ASSISTANT["assistant_id"], metadata={"graph_id": "agent"})
    of_deleted = row(OTHER, assistant_id=T, metadata={"graph_id": "digest"})
    served.answers["POST /d/app/runs/search"] = [(200, [of_assistant, of_deleted])]
    served.answers[f"GET {THREAD}/runs/{RUN}"] = [(200, of_assistant)]
    lines = typed(served, "runs", "list").stdout.splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["Support", "digest"]
    assert f"Support ({ASSISTANT['assistant_id']})" in typed(served, "runs", "show", RUN).stdout
    served.answers["POST /d/app/assistants/search"] = [(403, {"detail": "no"})]
    assert typed(served, "runs", "list").stdout.splitlines()[1].split()[1] == "agent"


def test_threads_are_listed_by_title_without_control_characters(served: ControlPlane) -> None:
    titled = {**SHOWN, "extracted": {"title": "Where is\x1b[31m my order?"}}
    served.answers["POST /d/app/threads/search"] = [
        (200, [titled, {**SHOWN, "thread_id": f"{OTHER[:-8]}aaaaaaaa"}])
    ]
    first, second = typed(served, "threads", "list").stdout.splitlines()[1:]
    assert "Where is�[31m my order?" in first
    assert second.split()[:2] == [f"{OTHER[:-8]}aaaaaaaa", "-"]
    assert served.body("POST /d/app/threads/search")["extract"] == {"title": "title"}
    several = typed(served, "threads", "show", "aaaaaaaa")
    assert (several.exit_code, f"{T}  Where is" in several.stderr) == (2, True)
    served.answers[f"GET {THREAD}"] = [(200, {**SHOWN, "title": "Late order"})]
    assert "Late order" in typed(served, "threads", "show", T).stdout


def test_a_run_is_cancelled_unless_it_has_ended(served: ControlPlane) -> None:
    ran = typed(served, "runs", "cancel", RUN)
    assert (ran.exit_code, "has ended already: error" in ran.stderr) == (1, True)
    served.answers[f"GET {THREAD}/runs"] = [(200, [row(status="running")])]
    served.answers[f"POST {THREAD}/runs/{RUN}/cancel"] = [(200, {})]
    ran = typed(served, "runs", "cancel", RUN, "--thread", T, "--json")
    assert json.loads(ran.stdout) == {"run_id": RUN, "thread_id": T, "cancelled": True}


def test_a_retry_is_a_new_run_and_what_the_deployment_refuses_a_sentence(served: ControlPlane) -> None:
    served.answers[f"POST {THREAD}/runs/{RUN}/retry"] = [(200, row(OTHER, "pending"))]
    assert f"Run {OTHER} is pending" in typed(served, "runs", "retry", RUN[-8:], "--force").stdout
    assert served.body(f"POST {THREAD}/runs/{RUN}/retry") == {"force": True}
    served.answers[f"POST {THREAD}/runs/{RUN}/retry"] = [(409, {"detail": "The thread is busy"})]
    ran = typed(served, "runs", "retry", RUN)
    assert (ran.exit_code, "The thread is busy." in ran.stderr) == (1, True)


def test_what_serves_nothing_has_nothing_to_show(server: ControlPlane) -> None:
    server.answers = {"GET /v2/deployments": [(200, {"resources": [record()]})]}
    ran = typed(server, "threads", "list")
    assert (ran.exit_code, "app does not serve yet" in ran.stderr) == (1, True)


# threads


def test_threads_are_listed_and_shown(served: ControlPlane) -> None:
    listed = typed(served, "threads", "list", "--status", "error").stdout.splitlines()
    assert listed[1].split()[:3] == [T, "-", "error"]
    assert served.body("POST /d/app/threads/search")["status"] == "error"
    told = typed(served, "threads", "show", T[-8:]).stdout.splitlines()
    assert 'Waits for   ["Who?"]' in told
    assert told[-4:] == ["messages", "  ai: Hello", "topic", "  tea"]
    assert json.loads(typed(served, "threads", "show", T, "--json").stdout) == SHOWN


def test_a_history_is_newest_first(served: ControlPlane) -> None:
    (_, line) = typed(served, "threads", "history", T, "--limit", "5").stdout.splitlines()
    assert (line.split()[:2], line.split()[-2:]) == (["1", "loop"], [OTHER, "ask"])
    assert served.body(f"POST {THREAD}/history") == {"limit": 5}

    refused = typed(served, "threads", "delete", T)
    assert (refused.exit_code, "--yes" in refused.stderr) == (1, True)
    ran = typed(served, "threads", "delete", T[-8:], "-y", "--json")
    assert json.loads(ran.stdout) == {"thread_id": T, "deleted": True}
    assert f"DELETE {THREAD}" in served.asked


OPEN_OR_SUCCESSFUL = {RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SUCCESS}


def test_words_are_the_service_s_and_shown_by_what_they_mean() -> None:
    """The command line's statuses equal the service's, and their styles tell failures from other ends."""
    assert names.REVISION_ENDS == REVISION_ENDS
    assert {end for end in REVISION_ENDS if end.endswith("FAILED")} == names.REVISION_FAILURES
    assert list(RunStatus) == list(names.RUN_STATUSES)
    assert set(RunStatus) - OPEN_OR_SUCCESSFUL == names.UNSUCCESSFUL_RUNS
    assert set(names.WAITS_FOR) == {run_record.ANSWER, run_record.RESUME}

    shown = {status: names.revision_style(status) for status in RevisionStatus}

    assert {status for status, style in shown.items() if style == "bold red"} == names.REVISION_FAILURES
    assert {status for status, style in shown.items() if style != "cyan"} == REVISION_ENDS
