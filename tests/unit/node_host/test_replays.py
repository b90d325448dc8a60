"""Replays in the Node host: the twins of the Python host's tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shared.replays.answered_calls import inside, usage_without
from shared.replays.comparison import INTERRUPTS, Side, compare
from tests.support.hosted import HOSTED
from tests.support.hosts import Checkpointed, HostProcess, Run, graph_host
from tests.support.node_hosts import node_host
from workers.graph_host import frames

NAMES = (
    "agent",
    "outer",
    "keeps",
    "dials",
    "louder",
    "fanned",
    "team",
    "streaming",
    "failing",
    "changes",
    "adjusting",
    "delegating",
)
GRAPHS = {name: f"./replayed.ts:{name}" for name in NAMES}
REPLAY = {"score": "./replayed.ts:score"}


@pytest.fixture(scope="module")
def replay_host(node_project: Path) -> Iterator[HostProcess]:
    with node_host(node_project, GRAPHS, replay=REPLAY) as host:
        assert "error" not in host.ready, host.ready
        yield host


def question(*calls: Any) -> dict[str, Any]:
    """Return the input that makes the scripted model call these tools, given as (name, arguments)."""
    return {"messages": [{"role": "user", "content": json.dumps(calls)}]}


def record(host: HostProcess, graph_id: str, input: Any, **spec: Any) -> tuple[dict[str, Any], Run]:
    """Execute a run, and return its recording with it."""
    thread = Checkpointed(host)
    run = thread.run(graph_id, input, **spec)
    recording = thread.query("recording", graph_id, run_id=str(run.id), checkpoint_id=None)
    host.answer = lambda run, kind, parts: None
    return recording, run


def replay(
    host: HostProcess, graph_id: str, input: Any, recording: Any, *, traced: bool = False, **rules: Any
) -> Run:
    rules = {"tools": "recorded", "recording": recording, **rules}
    return host.run(graph_id, input, replay=rules, traced=traced)


def contents(run: Run) -> list[Any]:
    return [message["content"] for message in run.values["messages"]]


def called(run: Run) -> list[tuple[str, str]]:
    return sorted((call["operation"], call["name"]) for call in run.calls)


@pytest.mark.parametrize("graph_id", ["agent", "outer"])
def test_equal_calls_get_the_recorded_results(
    replay_host: HostProcess, tmp_path: Path, graph_id: str
) -> None:
    path = tmp_path / "written"
    calls = question(
        ("write", {"path": str(path)}), ("next", {"what": "a"}), ("next", {"what": "a"}), ("picture", {"name": "p"}),
        ("remember", {"text": "note"}),
    )  # fmt: skip
    recording, original = record(replay_host, graph_id, calls, traced=True)
    path.unlink()

    replayed = replay(replay_host, graph_id, calls, recording, traced=True)

    assert contents(replayed) == contents(original)
    assert called(replayed) == called(original), "a trace has each call once"
    assert replayed.values["notes"] == original.values["notes"] == ["note"]
    assert not path.exists()
    assert replayed.outcome["replay"] == {
        "unrecorded": [], "live": [], "network": [], "models_recorded": 0, "models_live": 2,
    }  # fmt: skip
    [artifact] = [m["artifact"] for m in replayed.values["messages"] if m.get("name") == "picture"]
    assert artifact == {"a": 1}


def test_a_call_with_other_arguments_is_not_executed(replay_host: HostProcess, tmp_path: Path) -> None:
    recording, _ = record(replay_host, "agent", question(("write", {"path": str(tmp_path / "a")})))
    (tmp_path / "a").unlink()

    replayed = replay(replay_host, "agent", question(("write", {"path": str(tmp_path / "b")})), recording)

    assert list(tmp_path.iterdir()) == []
    assert replayed.outcome["replay"]["unrecorded"] == [
        {"tool": "write", "args": {"path": str(tmp_path / "b")}}
    ]
    [answer] = [m for m in replayed.values["messages"] if m["type"] == "tool"]
    assert (answer["status"], "was not executed" in answer["content"]) == ("error", True)


def test_live_tools_are_executed(replay_host: HostProcess, tmp_path: Path) -> None:
    calls = question(("write", {"path": str(tmp_path / "a")}))

    replayed = replay(replay_host, "agent", calls, {}, live_tools=["write"])

    assert (tmp_path / "a").exists()
    assert replayed.outcome["replay"]["live"] == ["write"]


def test_a_recorded_call_of_a_live_tool_is_not_executed(replay_host: HostProcess, tmp_path: Path) -> None:
    calls = question(("write", {"path": str(tmp_path / "a")}))
    recording, original = record(replay_host, "agent", calls)
    (tmp_path / "a").unlink()

    replayed = replay(replay_host, "agent", calls, recording, live_tools=["write"])

    assert contents(replayed) == contents(original)
    assert replayed.outcome["replay"]["live"] == list(tmp_path.iterdir()) == []


def test_concurrent_replays_do_not_mix(replay_host: HostProcess) -> None:
    def recorded(n: int) -> dict[str, Any]:
        call = {
            "id": "1",
            "name": "next",
            "args": {"what": "x"},
            "content": f"recorded {n}",
            "status": "success",
        }
        return {"tools": [call], "models": []}

    calls = question(("next", {"what": "x"}))
    runs = [
        replay_host.start("agent", calls, replay={"tools": "recorded", "recording": recorded(n)})
        for n in range(20)
    ]
    ordinary = replay_host.start("agent", calls)

    for n, run in enumerate(runs):
        assert contents(replay_host.wait_done(run))[-1] == f"recorded {n}"
    assert contents(replay_host.wait_done(ordinary))[-1].startswith("x ")
    assert "replay" not in ordinary.outcome


@pytest.mark.parametrize("graph_id", ["agent", "changes"])
def test_equal_model_calls_get_the_recorded_messages(replay_host: HostProcess, graph_id: str) -> None:
    calls = question(("next", {"what": "x"}))
    recording, original = record(replay_host, graph_id, calls)

    rules = {"recording": recording, "models": "recorded"}
    replayed = Checkpointed(replay_host).run(graph_id, calls, replay=rules)
    other = replay(replay_host, graph_id, question(("next", {"what": "y"})), **rules)

    assert contents(replayed) == contents(original)
    assert replayed.outcome["replay"]["models_recorded"] == 2
    assert other.outcome["replay"]["models_live"] == 2


@pytest.mark.parametrize("rules", [{}, {"models": "recorded"}, {"live_tools": ["next"]}])
def test_a_call_whose_arguments_a_node_changes_is_recorded(
    replay_host: HostProcess, rules: dict[str, Any]
) -> None:
    calls = question(("next", {"what": "x"}), ("next", {"what": "y"}))
    recording, original = record(replay_host, "adjusting", calls)

    replayed = replay(replay_host, "adjusting", calls, recording, **rules)

    assert contents(replayed) == contents(original)
    assert contents(original)[-1].startswith("y! ")
    assert replayed.outcome["replay"]["unrecorded"] == replayed.outcome["replay"]["live"] == []


@pytest.mark.parametrize("graph_id", ["agent", "changes"])
def test_a_recorded_question_is_asked_again_and_its_answer_is_used(
    replay_host: HostProcess, graph_id: str
) -> None:
    thread = Checkpointed(replay_host)
    first = thread.run(graph_id, question(("asks", {"question": "sure?"})))
    start = first.outcome["state"]["checkpoint_id"]
    left = thread.query("state", graph_id, checkpoint={"checkpoint_id": start}, left_by=str(first.id))
    second = thread.run(graph_id, None, command={"resume": "yes"})
    asked = thread.query("recording", graph_id, run_id=str(first.id), checkpoint_id=None)
    answered = thread.query("recording", graph_id, run_id=str(second.id), checkpoint_id=start)

    case = Checkpointed(replay_host)
    again = case.run(graph_id, question(("asks", {"question": "sure?"})), replay={"recording": asked})
    resumed = case.run(graph_id, None, command={"resume": "yes"}, replay={"recording": answered})

    assert left["interrupts"] == first.outcome["state"]["interrupts"]
    assert again.outcome["state"]["interrupts"][0]["value"] == "sure?"
    assert contents(resumed)[1:] == contents(second)[1:] == ["", "answered yes", "answered yes"]
    assert (again.outcome["replay"]["unrecorded"], resumed.outcome["replay"]["unrecorded"]) == ([], [])


def test_the_state_that_a_run_left_has_the_writes_of_its_ended_tasks(replay_host: HostProcess) -> None:
    thread = Checkpointed(replay_host)
    run = thread.run("fanned", question(("count", {"what": "x"}), ("asks", {"question": "sure?"})))
    checkpoint = {"checkpoint_id": run.outcome["state"]["checkpoint_id"]}

    state = thread.query("state", "fanned", checkpoint=checkpoint, left_by=str(run.id))

    assert [message["type"] for message in state["values"]["messages"]] == ["human", "ai", "tool"]
    assert state["interrupts"] == run.outcome["state"]["interrupts"]


def test_models_inside_of_tools_have_their_usage_in_the_spans(replay_host: HostProcess) -> None:
    _, run = record(
        replay_host, "delegating", question(("task", {"description": '[["count", {"what": "x"}]]'}))
    )

    left_out = inside(run.outcome["spans"], ())
    usage, unknown = usage_without(run.outcome["usage"], left_out)

    assert [span["name"] for span in left_out if span["kind"] == "node"] == ["think", "tools", "think"]
    assert (sum(counts["total_tokens"] for counts in usage.values()), unknown) == (6, 0)


def test_writes_to_the_store_end_with_the_run(replay_host: HostProcess) -> None:
    times = dict.fromkeys(("created_at", "updated_at"), "2026-01-01T00:00:00+00:00")
    stored = {key: {"namespace": ["a"], "key": key, "value": {"n": 1}, **times} for key in ("old", "kept")}
    asked: list[dict[str, Any]] = []

    def answer(run: Run, kind: int, parts: list[bytes]) -> list[bytes]:
        ops = json.loads(parts[0])["ops"] if kind == frames.ASK else []
        asked.extend(ops)
        results = {
            "get": lambda op: stored[op["key"]],
            "search": lambda op: [{**item, "score": None} for item in stored.values()],
            "namespaces": lambda op: [["a"]],
        }
        return [json.dumps([results[op["op"]](op) for op in ops]).encode()]

    replay_host.answer = answer
    run = replay(replay_host, "keeps", {"messages": []}, {})
    replay_host.answer = lambda run, kind, parts: None

    shown = json.loads(run.values["notes"][0])
    assert shown == {"found": ["new", "kept"], "names": [["a"], ["a", "b"]], "gone": None, "kept": {"n": 1}}
    assert {op["op"] for op in asked} == {"get", "search", "namespaces"}
    assert not any(op.get("refresh") for op in asked)


def test_nodes_open_no_connections(replay_host: HostProcess) -> None:
    refused = replay(replay_host, "dials", {"messages": []}, {})
    allowed = replay(replay_host, "dials", {"messages": []}, {}, network=True)

    assert refused.values["notes"][0].startswith("a replay opens no connections")
    assert refused.outcome["replay"]["network"] == ["127.0.0.1:9"]
    assert "ECONNREFUSED" in allowed.values["notes"][0]
    assert allowed.outcome["replay"]["network"] == []


def test_the_scorer_s_numbers_or_its_error_are_the_answer(replay_host: HostProcess) -> None:
    def scored(input: Any) -> dict[str, Any]:
        document = {"op": "score", "input": input, "reference": "a", "output": "a", "run": {"steps": 3}}
        return json.loads(replay_host.query(document)[0])

    assert scored({}) == {"scores": {"same": 1, "steps": 3}}
    assert scored({"returns": 5}) == {
        "error": "the scorer returned number: an object of numbers is needed", "traceback": None,
    }  # fmt: skip
    for value, shown in (("b", "b"), (-2e100, "-2e+100")):
        answer = scored({"returns": {"a": value}})
        assert answer["error"] == f"the score 'a' is {shown}: a number from -1e+100 to 1e+100 is needed"
    failed = scored({"raises": "broken"})
    assert failed["error"] == "RangeError: broken"
    assert "replayed.ts" in failed["traceback"]


def test_a_scorer_that_is_no_function_is_refused(node_project: Path) -> None:
    graphs = {"agent": GRAPHS["agent"]}
    with node_host(node_project, graphs, replay={"score": "./replayed.ts:missing"}) as host:
        assert host.ready["error"]["message"].startswith("replay.score: ./replayed.ts:missing is no function")


SCENARIOS: dict[str, tuple[str, str, list[Any], dict[str, Any]]] = {
    "tool loop": ("agent", "agent", [("count", {"what": "x"})], {}),
    "parallel tools": ("agent", "agent", [("count", {"what": "x"}), ("remember", {"text": "n"})], {}),
    "changed wording": ("agent", "louder", [("count", {"what": "x"})], {}),
    "question of a tool": ("fanned", "fanned", [("count", {"what": "x"}), ("asks", {"question": "sure?"})], {}),
    "question beside a call": ("agent", "agent", [("count", {"what": "x"}), ("asks", {"question": "sure?"})], {}),
    "subgraph": ("outer", "outer", [("count", {"what": "x"})], {}),
    "fan-out": ("fanned", "fanned", [("count", {"what": "x"}), ("count", {"what": "y"})], {}),
    "recorded model": ("agent", "agent", [("count", {"what": "x"})], {"models": "recorded"}),
    "streaming": ("streaming", "streaming", [("count", {"what": "x"})], {"models": "recorded"}),
    "exception of a tool": ("agent", "agent", [("breaks", {"reason": "no"})], {}),
    "exception of a node": ("agent", "failing", [("count", {"what": "x"})], {}),
    "command": ("agent", "agent", [("leave", {})], {}),
    "handover": ("team", "team", [("hand_over", {})], {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def python_host() -> Iterator[HostProcess]:
    names = {name for one, other, *_ in SCENARIOS.values() for name in (one, other)}
    with graph_host(HOSTED, {name: f"./replayed.py:{name}" for name in names}) as host:
        yield host


def judged(host: HostProcess, scenario: str) -> tuple[Any, ...]:
    """Return the outcome of a case in a host, its first difference, and what its replay reported."""
    graph_id, other, calls, rules = SCENARIOS[scenario]
    recording, original = record(host, graph_id, question(*calls))
    replayed = Checkpointed(host).run(other, question(*calls), replay={"recording": recording, **rules})
    outcome, comparison = compare(_side(original), _side(replayed), replayed.outcome["replay"])
    steps = comparison["steps"]
    return outcome, comparison["first_difference"], steps, comparison["report"]


def _side(run: Run) -> Side:
    asked = (run.outcome["state"] or {}).get("interrupts")
    now = datetime.now(UTC)
    values = {**(run.values or {}), **({INTERRUPTS: asked} if asked else {})}
    return Side(run.outcome["status"], values, spans=run.outcome["spans"], started_at=now, ended_at=now)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_hosts_judge_a_case_alike(
    replay_host: HostProcess, python_host: HostProcess, scenario: str
) -> None:
    expected = {"changed wording": "changed", "exception of a node": "failed"}.get(scenario, "same")
    ours = judged(replay_host, scenario)

    assert ours == judged(python_host, scenario)
    assert ours[0] == expected
    assert (ours[1] is None) == (expected == "same")
