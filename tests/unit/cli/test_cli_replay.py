"""`runyard replay` and `runyard deploy --replay`: their requests, output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import deployed, json_lines, runyard
from tests.support.control_plane import REVISION, ControlPlane, D, R, deploy_answers

pytestmark = pytest.mark.usefixtures("nowhere")

ID = "77777777-7777-4777-8777-7777eeeeeeee"
REPLAYS = f"/v2/deployments/{D}/replays"
START, ONE, CASES = f"POST {REPLAYS}", f"GET {REPLAYS}/{ID}", f"GET {REPLAYS}/{ID}/cases"
PROMOTE = f"POST /v2/deployments/{D}/traffic/promote"
AT = "2026-01-01T00:00:00+00:00"
COUNTS = {
    "total": 10, "waiting": 0, "running": 0, "same": 6, "changed": 2, "diverged": 0, "failed": 1, "skipped": 1,
}  # fmt: skip
NONE = dict.fromkeys(("waiting", "running", "same", "changed", "diverged", "failed", "skipped"), 0)
RULE = "errors>0, cost>+20%"


def figure(median: Any, p95: Any, total: Any) -> dict[str, Any]:
    return {"median": median, "p95": p95, "total": total}


def rules(*failed: bool | None) -> list[dict[str, Any]]:
    return [
        {"rule": text, "value": 1, "limit": 0, "original": 0.5, "failed": one}
        for text, one in zip(RULE.split(", "), failed, strict=False)
    ]


def summary(*failed: bool | None) -> dict[str, Any]:
    unknown = figure(None, None, None)
    return {
        "duration_seconds": {"original": figure(0.5, 1.25, 8), "replay": figure(1.0, 1.0, 9)},
        "tokens": {"original": figure(10, 20, 1_000), "replay": figure(20, 40, 2_000)},
        "cost": {"original": unknown, "replay": unknown},
        "scores": {"exact": {"original": 0.9, "replay": 0.75, "pairs": 8}},
        "rules": rules(*failed),
        "skipped": {"the input is no longer stored": 1},
    }


def replay(**more: Any) -> dict[str, Any]:
    execution = {"tools": "recorded", "live_tools": [], "models": "live", "network": False, "concurrency": 2}
    return {
        "id": ID, "deployment_id": D, "revision_id": R, "revision_number": 7, "preview": None, "status": "done",
        "reason": None, "verdict": "passed", "fail_on": RULE, "sample": 10, "seed": 5, "where": {}, **execution,
        "counts": COUNTS, "summary": summary(False, False), "created_by": {"key_id": "a", "name": "ci"},
        "created_at": AT, "ended_at": AT, **more,
    }  # fmt: skip


RUNNING = replay(status="running", verdict=None, summary=None, ended_at=None, counts={"total": 10, **NONE})
FAILED = replay(verdict="failed", summary=summary(True, False))


@pytest.fixture
def served(server: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    monkeypatch.setattr("cli.deployments.replays.POLL_SECONDS", 0.01)
    deployed(server, "DEPLOYED", "DEPLOYED")
    server.answers |= {START: [(201, RUNNING)], ONE: [(200, RUNNING), (200, replay())]}
    return server


def test_options_are_the_fields_of_the_request_and_the_replay_is_followed(served: ControlPlane) -> None:
    options = (
        "--revision v1 --sample 50 --seed 3 --until 2026-01-31T12:00:00Z --assistant support --graph agent"
        " --status success --status error --metadata n=1 --metadata s=x --key k1"
    ).split()
    more = (
        f"--run {R} --tools live --live-tool a --live-tool b --models recorded --network --concurrency 8"
        " --max-tokens 10 --max-cost 0.5 --max-minutes 1.5 --fail-on errors>0"
    ).split()

    found = [{"assistant_id": D, "name": "support", "graph_id": "agent"}]
    served.answers["POST /d/app/assistants/search"] = [(200, found)]

    ran = runyard(served, "replay", "app", *options, *more)

    assert ran.exit_code == 0, ran.output
    assert served.asked.count(ONE) == 2
    body = served.body(START)
    assert body.pop("where") == {
        "until": "2026-01-31T12:00:00+00:00", "assistant": D, "graph_id": "agent",
        "status": ["success", "error"], "metadata": {"n": 1, "s": "x"}, "key_id": "k1", "run_ids": [R],
    }  # fmt: skip
    assert body == {
        "revision": R,
        "sample": 50, "seed": 3, "tools": "live", "live_tools": ["a", "b"], "models": "recorded", "network": True,
        "concurrency": 8, "max_tokens": 10, "max_cost": 0.5, "max_minutes": 1.5, "fail_on": "errors>0",
    }  # fmt: skip


def test_a_table_has_the_figures_of_both_sides_and_the_verdict(served: ControlPlane) -> None:
    served.answers[ONE] = [(200, FAILED)]

    lines = [
        " ".join(line.split()) for line in runyard(served, "replay", "show", "app", ID).stdout.splitlines()
    ]

    assert lines == [
        f"Replay {ID} of v7, tools recorded, models live, seed 5",
        "10 cases: 6 same, 2 changed, 1 failed, 1 skipped",
        "1 skipped: the input is no longer stored",
        "",
        "original replay change",
        "median time 500 ms 1.00 s +100.0 %",
        "p95 time 1.25 s 1.00 s -20.0 %",
        "tokens 1,000 2,000 +100.0 %",
        "tokens, median 10 20 +100.0 %",
        "score exact (8 cases) 0.9 0.75 -16.7 %",
        "",
        "Rule original replay limit Result",
        "errors>0 0.5 1 0 failed",
        "cost>+20% 0.5 1 0 passed",
        "",
        "Failed: errors>0.",
    ]


@pytest.mark.parametrize(
    ("record", "code", "sentence"),
    [
        (replay(), 0, f"Passed: {RULE}."),
        (replay(verdict=None, fail_on=None, summary=summary()), 0, "Compared without a rule."),
        (FAILED, 3, "Failed: errors>0."),
        (
            replay(verdict="failed", summary=summary(True), status="stopped", reason="max_tokens"),
            3,
            "Failed: errors>0.",
        ),
        (
            replay(verdict=None, summary=summary(False, None)),
            4,
            "Could not be judged: no figures for cost>+20%.",
        ),
        (
            replay(verdict=None, counts={"total": 1, **NONE, "skipped": 1}),
            4,
            "Could not be judged: no case was judged.",
        ),
        (
            replay(verdict=None, fail_on=None, counts={"total": 0, **NONE}),
            4,
            "Could not be judged: no case was judged.",
        ),
        (
            replay(verdict=None, status="stopped", reason="max_tokens is reached"),
            4,
            "Could not be judged, the replay is stopped: max_tokens is reached.",
        ),
        (RUNNING, 4, "The replay is running: 0 of 10 cases: none has ended."),
    ],
)
def test_the_exit_code_is_the_verdict(
    served: ControlPlane, record: dict[str, Any], code: int, sentence: str
) -> None:
    served.answers[ONE] = [(200, record)]

    ran = runyard(served, "replay", "show", "app", ID)

    assert (ran.exit_code, ran.stdout.splitlines()[-1]) == (code, sentence)
    ran = runyard(served, "replay", "show", "app", ID, "--json")
    assert (ran.exit_code, json.loads(ran.stdout)) == (code, record)


def test_the_command_returns_at_once_with_no_wait(served: ControlPlane) -> None:
    ran = runyard(served, "replay", "app", "--preview", "pr-1", "--no-wait")

    assert (ran.exit_code, f"runyard replay show app {ID}" in ran.stdout, ONE in served.asked) == (
        0,
        True,
        False,
    )
    assert served.body(START) == {"preview": "pr-1", "where": {}}  # the service has the defaults


def test_wrong_options_start_nothing(served: ControlPlane) -> None:
    for words, text in (
        (["--revision", "v1", "--preview", "x"], "name two revisions"),
        (["--fail-on", "latency>1"], "--fail-on: unknown metric 'latency'"),
        (["--fail-on", "cost>+x"], "--fail-on: 'cost>+x' is not of the form"),
        (["--status", "running"], "choose from success, error, timeout, interrupted"),
        (["--metadata", "x"], "give KEY=VALUE"),
        (["--sample", "0"], "--sample"),
    ):
        ran = runyard(served, "replay", "app", *words)
        assert (ran.exit_code, text in " ".join(ran.stderr.split())) == (2, True), f"{words}: {ran.output}"
    assert START not in served.asked


def test_replays_are_listed_cancelled_and_deleted(served: ControlPlane) -> None:
    served.answers |= {
        f"GET {REPLAYS}": [(200, {"resources": [replay()]})],
        ONE: [(200, replay())],
        f"POST {REPLAYS}/{ID}/cancel": [(200, replay(status="cancelled"))],
        f"DELETE {REPLAYS}/{ID}": [(204, None)],
    }

    listed = runyard(served, "replay", "list", "app").stdout
    assert ("passed" in listed, "6 same, 2 changed" in listed) == (True, True)
    assert "is cancelled: 6 same" in runyard(served, "replay", "cancel", "app", ID[-8:]).stdout
    assert runyard(served, "replay", "delete", "app", ID).exit_code == 1
    assert f"DELETE {REPLAYS}/{ID}" not in served.asked
    assert runyard(served, "replay", "delete", "app", ID, "--yes").exit_code == 0
    assert "REPLAY is missing" in runyard(served, "replay", "show").stderr
    assert "There is no replay 'abcd'" in runyard(served, "replay", "show", "app", "abcd").stderr


def test_cases_are_listed_with_their_first_difference(served: ControlPlane) -> None:
    differences = [
        {"path": "messages.1.content", "original": "hi", "replay": "ho\x1b[31m"},
        {"path": "n", "replay": 1},
    ]

    def case(position: int, outcome: str, reason: str | None = None, **comparison: Any) -> dict[str, Any]:
        ids = {"run_id": R, "thread_id": R, "case_run_id": R, "case_thread_id": R}
        return {
            "position": position, "outcome": outcome, "reason": reason, **ids, "comparison": comparison or None,
        }  # fmt: skip

    served.answers |= {
        ONE: [(200, replay())],
        CASES: [
            (
                200,
                {
                    "resources": [
                        case(
                            1,
                            "changed",
                            first_value=differences[0],
                            first_difference={"node": "agent", "field": "m"},
                        ),
                        case(2, "diverged", first_value=differences[1], unrecorded_tool="send"),
                        case(3, "skipped", "the input is no longer stored"),
                    ]
                },
            )
        ],
    }

    ran = runyard(served, "replay", "cases", "app", ID, "--outcome", "changed")

    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert lines[1:] == [
        f"1 {R} {R} changed agent messages.1.content: hi → ho�[31m",
        f"2 {R} {R} diverged - unrecorded call of send; n: nothing → 1",
        f"3 {R} {R} skipped - the input is no longer stored",
    ]
    assert "outcome=changed" in served.queries[-1]


@pytest.fixture
def previewed(server: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    """A deployment whose next deploy is the preview `pr-1` with the revision R."""
    monkeypatch.setattr("cli.deployments.replays.POLL_SECONDS", 0.01)
    deployed(server, "DEPLOYED", "DEPLOYED")
    found = server.answers["GET /v2/deployments"]
    shown = {"name": "pr-1", "revision_id": R, "url": "http://x/d/app--pr-1"}
    server.answers = deploy_answers(server) | {
        "GET /v2/deployments": found,
        f"GET /v2/deployments/{D}": [(200, found[0][1]["resources"][0])],
        f"POST /v2/deployments/{D}/revisions": [(201, {"id": R, "number": 3})],
        f"GET /v2/deployments/{D}/previews": [(200, {"resources": [shown]})],
        PROMOTE: [(200, found[0][1]["resources"][0])],
        START: [(201, RUNNING)],
        ONE: [(200, replay())],
    }
    return server


DEPLOY = ("--name", "app", "--preview", "pr-1", "--replay", "20")


@pytest.mark.parametrize(
    ("record", "code", "status", "promoted", "sentence"),
    [
        (replay(), 0, "succeeded", True, f"Passed: {RULE}. v3 serves app."),
        (FAILED, 3, "replay_failed", False, "Failed: errors>0. v3 is not promoted."),
        (
            replay(verdict=None, status="failed", reason="it cannot start"),
            4,
            "replay_not_judged",
            False,
            "Could not be judged, the replay is failed: it cannot start. v3 is not promoted.",
        ),
    ],
)
def test_a_preview_is_promoted_only_if_its_replay_passed(
    previewed: ControlPlane,
    project: Path,
    record: dict[str, Any],
    code: int,
    status: str,
    promoted: bool,
    sentence: str,
) -> None:
    previewed.answers[ONE] = [(200, record)]

    ran = runyard(previewed, "deploy", str(project), *DEPLOY, "--fail-on", RULE, "--promote", "--json")

    assert ran.exit_code == code, ran.output
    assert previewed.body(START) == {"revision": R, "sample": 20, "fail_on": RULE}
    (*_, shown, last) = json_lines(ran)
    assert (shown["event"], shown["id"]) == ("replay", ID)
    assert (last["event"], last["status"], last["promoted"], last["message"]) == (
        "result",
        status,
        promoted,
        sentence,
    )
    assert (PROMOTE in previewed.asked) is promoted
    if promoted:
        assert previewed.body(PROMOTE) == {"revision_id": R, "require_replay": True}


def test_a_deploy_shows_the_table_and_promotes_only_if_asked(previewed: ControlPlane, project: Path) -> None:
    ran = runyard(previewed, "deploy", str(project), *DEPLOY, "--fail-on", RULE)
    assert ran.exit_code == 0, ran.output
    assert "10 cases: 6 same" in ran.stdout
    assert PROMOTE not in previewed.asked

    ran = runyard(previewed, "deploy", str(project), *DEPLOY, "--fail-on", RULE, "--quiet")
    assert ran.stdout == "http://x/d/app--pr-1\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_timeout_before_the_replay_has_a_code_of_its_own(
    previewed: ControlPlane, project: Path, as_json: bool
) -> None:
    previewed.answers[REVISION] = [(200, {"id": R, "status": "BUILDING", "status_message": None})]
    words = [*DEPLOY, "--fail-on", RULE, "--timeout", "0.1", *(["--json"] if as_json else [])]

    ran = runyard(previewed, "deploy", str(project), *words)

    assert ran.exit_code == 5, ran.output
    assert START not in previewed.asked


def test_options_of_a_replay_that_do_not_fit_deploy_nothing(previewed: ControlPlane, project: Path) -> None:
    for words, text in (
        (["--fail-on", RULE], "--fail-on belongs to --replay"),
        (["--promote"], "--promote belongs to --replay"),
        (["--replay", "1"], "--replay needs --preview"),
        (["--preview", "x", "--replay", "1", "--promote"], "--promote needs --fail-on"),
        (["--preview", "x", "--replay", "1", "--no-wait"], "contradict each other"),
        (["--preview", "x", "--replay", "1", "--fail-on", "speed>1"], "unknown metric 'speed'"),
    ):
        ran = runyard(previewed, "deploy", str(project), "--name", "app", *words)
        assert (ran.exit_code, text in " ".join(ran.stderr.split())) == (2, True), f"{words}: {ran.output}"
    assert previewed.asked == []
