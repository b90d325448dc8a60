"""Replays: recordings of past runs, and runs whose tools and models are answered from them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.replays.answered_calls import inside, usage_without
from tests.support.hosted import HOSTED
from tests.support.hosts import Checkpointed, HostProcess, Run, graph_host
from workers.graph_host import frames
from workers.graph_host.replays.scoring import Scorer

NAMES = (
    "agent",
    "outer",
    "delegating",
    "team",
    "pair",
    "reviewing",
    "hands",
    "keeps",
    "dials",
    "streaming",
    "fanned",
    "adjusting",
    "changes",
    "calling",
)
GRAPHS = {name: f"./replayed.py:{name}" for name in NAMES}


@pytest.fixture(scope="module")
def replay_host() -> Iterator[HostProcess]:
    with graph_host(HOSTED, GRAPHS) as host:
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


def test_equal_calls_get_the_recorded_results(replay_host: HostProcess, tmp_path: Path) -> None:
    path = tmp_path / "written"
    calls = question(
        ("write", {"path": str(path)}), ("count", {"what": "a"}), ("count", {"what": "a"}),
        ("picture", {"name": "p"}), ("breaks", {"reason": "no"}), ("inspects", {"topic": "t"}),
    )  # fmt: skip
    recording, original = record(replay_host, "agent", calls, traced=True)
    path.unlink()

    replayed = replay(replay_host, "agent", calls, recording, traced=True)

    assert contents(replayed) == contents(original)
    assert called(replayed) == called(original), "a trace has each call once"
    assert not path.exists()
    assert replayed.outcome["replay"] == {
        "unrecorded": [], "live": [], "network": [], "models_recorded": 0, "models_live": 2,
    }  # fmt: skip
    message = {m["name"]: m for m in replayed.values["messages"] if m["type"] == "tool"}
    assert message["breaks"]["status"] == "error"
    assert message["picture"]["artifact"] == {"bytes": "AAE=", "at": [1, 2]}


def test_a_call_with_other_arguments_is_not_executed(replay_host: HostProcess, tmp_path: Path) -> None:
    recording, _ = record(replay_host, "agent", question(("write", {"path": str(tmp_path / "a")})))
    (tmp_path / "a").unlink()

    replayed = replay(replay_host, "agent", question(("write", {"path": str(tmp_path / "b")})), recording)

    assert list(tmp_path.iterdir()) == []
    assert replayed.outcome["status"] == "success"
    assert replayed.outcome["replay"]["unrecorded"] == [
        {"tool": "write", "args": {"path": str(tmp_path / "b")}}
    ]
    [answer] = [m for m in replayed.values["messages"] if m["type"] == "tool"]
    assert answer["status"] == "error"
    assert "was not executed" in answer["content"]


@pytest.mark.parametrize("rules", [{"tools": "live"}, {"live_tools": ["write"]}])
def test_live_tools_are_executed(replay_host: HostProcess, tmp_path: Path, rules: dict[str, Any]) -> None:
    replayed = replay(replay_host, "agent", question(("write", {"path": str(tmp_path / "a")})), {}, **rules)

    assert (tmp_path / "a").exists()
    assert replayed.outcome["replay"]["live"] == ["write"]
    assert replayed.outcome["replay"]["unrecorded"] == []


def test_a_recorded_call_of_a_live_tool_is_not_executed(replay_host: HostProcess, tmp_path: Path) -> None:
    calls = question(("write", {"path": str(tmp_path / "a")}))
    recording, original = record(replay_host, "agent", calls)
    (tmp_path / "a").unlink()

    replayed = replay(replay_host, "agent", calls, recording, live_tools=["write"])

    assert contents(replayed) == contents(original)
    assert replayed.outcome["replay"]["live"] == list(tmp_path.iterdir()) == []


def test_concurrent_replays_do_not_mix(replay_host: HostProcess) -> None:
    def recorded(n: int) -> dict[str, Any]:
        call = {"name": "count", "args": {"what": "same"}, "content": f"recorded {n}", "status": "success"}
        return {"tools": [call], "models": []}

    calls = question(("count", {"what": "same"}))
    runs = [
        replay_host.start("agent", calls, replay={"tools": "recorded", "recording": recorded(n)})
        for n in range(20)
    ]
    ordinary = replay_host.start("agent", calls)

    for n, run in enumerate(runs):
        assert contents(replay_host.wait_done(run))[-1] == f"recorded {n}"
    assert contents(replay_host.wait_done(ordinary))[-1].startswith("same ")
    assert "replay" not in ordinary.outcome


@pytest.mark.parametrize("graph_id", ["agent", "outer"])
def test_the_updates_of_commands_are_repeated(replay_host: HostProcess, graph_id: str) -> None:
    calls = question(("remember", {"text": "one"}), ("count", {"what": "x"}), ("remember", {"text": "two"}))
    recording, original = record(replay_host, graph_id, calls)

    replayed = replay(replay_host, graph_id, calls, recording)

    assert replayed.values["notes"] == original.values["notes"] == ["one", "two"]
    assert contents(replayed) == contents(original)
    assert replayed.outcome["replay"]["unrecorded"] == []


def test_a_command_goes_to_its_recorded_node(replay_host: HostProcess) -> None:
    recording, original = record(replay_host, "agent", question(("leave", {})))

    replayed = replay(replay_host, "agent", question(("leave", {})), recording)

    assert replayed.values["notes"] == original.values["notes"] == ["elsewhere"]


def test_a_tool_of_a_subgraph_hands_over_to_the_recorded_agent(replay_host: HostProcess) -> None:
    recording, original = record(replay_host, "team", question(("hand_over", {})))

    replayed = replay(replay_host, "team", question(("hand_over", {})), recording)

    assert replayed.values["notes"] == original.values["notes"] == ["to bob", "bob"]
    assert contents(replayed) == contents(original)


def test_an_agent_hands_over_to_another_agent_that_got_its_messages(replay_host: HostProcess) -> None:
    recording, original = record(replay_host, "pair", question(("hand_over", {})))

    replayed = replay(replay_host, "pair", question(("hand_over", {})), recording)

    assert replayed.values["notes"] == original.values["notes"]
    assert contents(replayed) == contents(original)


def test_what_a_tool_wrote_to_the_state_itself_is_repeated(replay_host: HostProcess) -> None:
    calls = question(("files", {"name": "a"}))
    recording, original = record(replay_host, "agent", calls)

    replayed = replay(replay_host, "agent", calls, recording)

    assert replayed.values["notes"] == original.values["notes"] == ["a"]
    assert contents(replayed) == contents(original)


def test_the_call_that_a_reviewer_has_edited_is_recorded(replay_host: HostProcess) -> None:
    calls = question(("count", {"what": "x"}))
    recording, original = record(replay_host, "reviewing", calls)

    replayed = replay(replay_host, "reviewing", calls, recording)

    assert contents(replayed) == contents(original)
    assert replayed.outcome["replay"]["unrecorded"] == []


@pytest.mark.parametrize("rules", [{}, {"models": "recorded"}, {"live_tools": ["count"]}])
def test_a_call_whose_arguments_middleware_changes_is_recorded(
    replay_host: HostProcess, rules: dict[str, Any]
) -> None:
    calls = question(("count", {"what": "x"}), ("count", {"what": "y"}))
    recording, original = record(replay_host, "adjusting", calls)

    replayed = replay(replay_host, "adjusting", calls, recording, **rules)

    assert contents(replayed) == contents(original)
    assert contents(original)[-1].startswith("x! ")
    assert replayed.outcome["replay"]["unrecorded"] == replayed.outcome["replay"]["live"] == []


def test_equal_calls_of_a_subagent_are_not_those_of_its_caller(replay_host: HostProcess) -> None:
    calls = question(("task", {"description": '[["count", {"what": "x"}]]'}), ("count", {"what": "x"}))
    recording, original = record(replay_host, "delegating", calls)

    replayed = replay(replay_host, "delegating", calls, recording)

    assert contents(replayed) == contents(original)


@pytest.mark.parametrize("live_tools", [[], ["task"]])
def test_a_delegated_task_is_repeated_or_executed_with_recorded_tools(
    replay_host: HostProcess, tmp_path: Path, live_tools: list[str]
) -> None:
    calls = question(("task", {"description": json.dumps([["write", {"path": str(tmp_path / "a")}]])}))
    recording, original = record(replay_host, "delegating", calls)
    (tmp_path / "a").unlink()
    recording["tools"] = [call for call in recording["tools"] if call["name"] not in live_tools]

    replayed = replay(replay_host, "delegating", calls, recording, live_tools=live_tools)

    assert replayed.values["notes"] == original.values["notes"] == ["wrote x"]
    assert replayed.outcome["replay"]["unrecorded"] == []
    assert replayed.outcome["replay"]["models_live"] == (4 if live_tools else 2)
    assert list(tmp_path.iterdir()) == []


def test_models_inside_of_tools_have_their_usage_in_the_spans(replay_host: HostProcess) -> None:
    _, run = record(
        replay_host, "delegating", question(("task", {"description": '[["count", {"what": "x"}]]'}))
    )

    left_out = inside(run.outcome["spans"], ())
    usage, unknown = usage_without(run.outcome["usage"], left_out)

    assert [span["name"] for span in left_out if span["kind"] == "node"] == ["think", "tools", "think"]
    assert [span["tokens"] for span in left_out if span["kind"] == "model"] == [3, 3]
    assert (sum(counts["total_tokens"] for counts in usage.values()), unknown) == (6, 0)


def test_tools_called_by_nodes_get_the_recorded_content(replay_host: HostProcess, tmp_path: Path) -> None:
    calls = question(("write", {"path": str(tmp_path / "a")}))
    recording, original = record(replay_host, "hands", calls)

    assert contents(replay(replay_host, "hands", calls, recording)) == contents(original)


@pytest.mark.parametrize("graph_id", ["agent", "changes"])
def test_a_recorded_question_is_asked_again_and_its_answer_is_used(
    replay_host: HostProcess, graph_id: str
) -> None:
    thread = Checkpointed(replay_host)
    first = thread.run(graph_id, question(("asks", {"question": "sure?"})))
    second = thread.run(graph_id, None, command={"resume": "yes"})
    start = first.outcome["state"]["checkpoint_id"]
    asked = thread.query("recording", graph_id, run_id=str(first.id), checkpoint_id=None)
    answered = thread.query("recording", graph_id, run_id=str(second.id), checkpoint_id=start)

    case = Checkpointed(replay_host)
    again = case.run(graph_id, question(("asks", {"question": "sure?"})), replay={"recording": asked})
    resumed = case.run(graph_id, None, command={"resume": "yes"}, replay={"recording": answered})

    assert again.outcome["thread_status"] == "interrupted"
    assert again.outcome["state"]["interrupts"][0]["value"] == "sure?"
    assert contents(resumed)[1:] == contents(second)[1:] == ["", "answered yes", "answered yes"]
    assert (again.outcome["replay"]["unrecorded"], resumed.outcome["replay"]["unrecorded"]) == ([], [])


@pytest.mark.parametrize("graph_id", ["agent", "fanned"])
def test_calls_beside_a_question_are_not_unrecorded(replay_host: HostProcess, graph_id: str) -> None:
    calls = question(("count", {"what": "x"}), ("asks", {"question": "sure?"}), ("count", {"what": "y"}))
    recording, original = record(replay_host, graph_id, calls)

    replayed = Checkpointed(replay_host).run(graph_id, calls, replay={"recording": recording})

    assert contents(replayed) == contents(original)
    assert replayed.outcome["state"]["interrupts"][0]["value"] == "sure?"
    assert replayed.outcome["replay"]["unrecorded"] == []


def test_the_state_that_a_run_left_has_the_writes_of_its_ended_tasks(replay_host: HostProcess) -> None:
    thread = Checkpointed(replay_host)
    run = thread.run("fanned", question(("count", {"what": "x"}), ("asks", {"question": "sure?"})))
    checkpoint = {"checkpoint_id": run.outcome["state"]["checkpoint_id"]}

    state = thread.query("state", "fanned", checkpoint=checkpoint, left_by=str(run.id))

    shown = [(message["type"], message["content"]) for message in state["values"]["messages"]]
    assert shown == [(message["type"], message["content"]) for message in run.values["messages"]]
    assert [type for type, _ in shown] == ["human", "ai", "tool"]
    assert state["interrupts"] == run.outcome["state"]["interrupts"]


def test_only_the_calls_of_the_run_itself_are_recorded(replay_host: HostProcess) -> None:
    thread = Checkpointed(replay_host)
    thread.run("agent", question(("count", {"what": "before"})))
    run = thread.run("agent", question(("count", {"what": "x"})))

    recording = thread.query("recording", "agent", run_id=str(run.id), checkpoint_id=None)

    assert [call["args"] for call in recording["tools"]] == [{"what": "x"}]
    assert len(recording["models"]) == 2


def test_runs_that_store_only_their_last_checkpoint_are_recorded(replay_host: HostProcess) -> None:
    calls = question(("count", {"what": "x"}))
    recording, original = record(replay_host, "agent", calls, durability="exit")

    assert contents(replay(replay_host, "agent", calls, recording)) == contents(original)


@pytest.mark.parametrize("graph_id", ["agent", "outer", "streaming", "changes"])
def test_equal_model_calls_get_the_recorded_messages(replay_host: HostProcess, graph_id: str) -> None:
    calls = question(("count", {"what": "x"}))
    recording, original = record(replay_host, graph_id, calls)

    replayed = replay(replay_host, graph_id, calls, recording, models="recorded")
    other = replay(replay_host, graph_id, question(("count", {"what": "y"})), recording, models="recorded")

    assert contents(replayed) == contents(original)
    counted = 1 if graph_id == "streaming" else 2
    assert replayed.outcome["replay"]["models_recorded"] == counted
    assert replayed.outcome["replay"]["models_live"] == 0
    assert other.outcome["replay"]["models_live"] == counted


@pytest.mark.parametrize(
    "way",
    [
        "invoke",
        "batch",
        "abatch",
        "generate",
        "retry",
        "fallbacks",
        "bound",
        "cached",
        "stream",
        "events",
        "chain",
    ],
)
def test_a_model_is_answered_in_every_way_to_call_it(replay_host: HostProcess, way: str) -> None:
    input = {**question(("count", {"what": "x"})), "notes": [way]}
    recording, original = record(replay_host, "calling", input)

    replayed = replay(replay_host, "calling", input, recording, models="recorded")

    assert contents(replayed) == contents(original)
    called = [message["tool_calls"] for message in replayed.values["messages"][1:]]
    assert called == [message["tool_calls"] for message in original.values["messages"][1:]]
    counts = replayed.outcome["replay"]
    assert (counts["models_recorded"], counts["models_live"]) == (1, 0)


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
    assert allowed.outcome["replay"]["network"] == []
    assert not any("a replay" in note for note in allowed.values.get("notes", ()))


def test_a_thread_without_the_run_s_context_executes_no_tools(
    replay_host: HostProcess, tmp_path: Path
) -> None:
    path = str(tmp_path / "a")

    replay(replay_host, "agent", question(("stray", {"path": path})), {}, live_tools=["stray", "write"])

    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def scoring_host() -> Iterator[HostProcess]:
    with graph_host(HOSTED, {"agent": GRAPHS["agent"]}, replay={"score": "./replayed.py:score"}) as host:
        yield host


def scored(host: HostProcess, input: Any, **values: Any) -> dict[str, Any]:
    document = {"op": "score", "input": input, "reference": "a", "output": "a", "run": {"steps": 3}, **values}
    [answer] = host.query(document)
    return json.loads(answer)


def test_the_scorer_s_numbers_are_the_answer(scoring_host: HostProcess) -> None:
    assert scored(scoring_host, {}) == {"scores": {"length": 1.0, "same": 1.0, "steps": 3.0}}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (0.5, "the scorer returned float: an object of numbers is needed"),
        (None, "the scorer returned NoneType: an object of numbers is needed"),
        ({"a": "good"}, "the score 'a' is 'good': a number from -1e+100 to 1e+100 is needed"),
        ({"a": None}, "the score 'a' is None: a number from -1e+100 to 1e+100 is needed"),
        ({"a": -2e100}, "the score 'a' is -2e+100: a number from -1e+100 to 1e+100 is needed"),
    ],
)
def test_a_scorer_that_returns_no_numbers_is_an_error(
    scoring_host: HostProcess, value: Any, reason: str
) -> None:
    assert scored(scoring_host, {"returns": value}) == {"error": reason, "traceback": None}


def test_a_scorer_that_raises_is_an_error_with_its_traceback(scoring_host: HostProcess) -> None:
    answer = scored(scoring_host, {"raises": "broken"})

    assert answer["error"] == "RuntimeError: broken"
    assert "raise RuntimeError(text)" in answer["traceback"]


def test_a_scorer_that_never_returns_is_given_up() -> None:
    returned = threading.Event()
    scorer = Scorer(lambda *_: {"done": returned.wait()}, seconds=0.01)

    async def scored() -> None:
        assert scorer.damage is None
        for _ in range(2):
            answer = await scorer.answer({})
            assert answer["error"] == "the scorer did not return within 0.01 s"
        assert scorer.damage == "a call of the scorer has not returned"
        returned.set()
        while "error" in (answer := await scorer.answer({})):
            await asyncio.sleep(0.01)
        assert answer == {"scores": {"done": 1.0}}

    asyncio.run(scored())


def test_a_scorer_may_be_async() -> None:
    with graph_host(
        HOSTED, {"agent": GRAPHS["agent"]}, replay={"score": "./replayed.py:score_async"}
    ) as host:
        assert scored(host, {}) == {"scores": {"score": 0.5}}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "replay.score: ./replayed.py has no 'missing'"),
        ("executed", "replay.score: ./replayed.py:executed is no function: list"),
        ("score_of_two", "it is called with (inputs, reference_output, output, run)"),
    ],
)
def test_a_scorer_that_cannot_be_called_is_refused(name: str, reason: str) -> None:
    with graph_host(HOSTED, {"agent": GRAPHS["agent"]}, replay={"score": f"./replayed.py:{name}"}) as host:
        assert reason in host.ready["error"]["message"]
