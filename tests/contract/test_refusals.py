"""Errors of a deployment's API that no schema describes, with the texts that clients read."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from shared.infra import postgres
from shared.models import RUN as RUNS
from tests.contract.conftest import Api
from tests.contract.documented import deployment_records
from tests.contract.run_calls import MISSING
from tests.support.routes import filled

BOTH = {"config": {"configurable": {"a": 1}}, "context": {"a": 1}}
RUN = {"assistant_id": "agent"}
CRON = {"assistant_id": "agent", "schedule": "0 0 1 1 *"}
NO_ASSISTANT = "Assistant <missing> not found"
NO_THREAD = "Thread with ID <missing> not found"
NO_GRAPH = "Graph 'nope' not found. Expected one of: ['agent', 'other']"
NOTHING_FOUND = "Thread or assistant not found."
TWO_CONFIGURATIONS = "Cannot specify both configurable and context. Prefer setting context alone."
UNKNOWN_ASSISTANT = (
    "Invalid assistant: 'nope'. Must be either:\n- A valid assistant UUID, or\n"
    "- One of the registered graphs: agent, other"
)
REJECTED = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."

# `METHOD path`, body, status, detail. A detail that ends in an ellipsis is a prefix.
REFUSALS: list[tuple[str, Any, int, str]] = [
    ("POST /assistants", {"graph_id": "agent", **BOTH}, 400, TWO_CONFIGURATIONS),
    ("PATCH /assistants/<assistant_id>", BOTH, 400, TWO_CONFIGURATIONS),
    ("POST /runs", {**RUN, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /runs/batch", [RUN, {**RUN, **BOTH}], 400, TWO_CONFIGURATIONS),
    ("POST /runs/wait", {**RUN, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /runs/stream", {**RUN, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /runs/crons", {**CRON, **BOTH}, 400, TWO_CONFIGURATIONS),
    ("POST /threads/<blank>/state", {"values": {}}, 400, "Thread '<blank>' has no assigned graph ID…"),
    ("PATCH /runs/crons/<cron_id>", {}, 400, "Request body cannot be empty"),
    ("POST /threads/search", {"ids": ["bad"]}, 400, "Invalid thread ID bad"),
    ("POST /threads/search", {"ids": ["<thread_id>", "7"]}, 400, "Invalid thread ID 7"),
    ("PUT /store/items", {"namespace": [], "key": "k", "value": {}}, 400, "Namespace cannot be empty."),
    (
        "PUT /store/items", {"namespace": ["langgraph"], "key": "k", "value": {}}, 400,
        'Root label for namespace cannot be "langgraph"…',
    ),
    ("GET /store/items?namespace=a", None, 400, "Key is required"),
    ("GET /assistants/<missing>", None, 404, "Not Found"),
    ("GET /assistants/<missing>/graph", None, 404, "Not Found"),
    ("GET /assistants/<missing>/schemas", None, 404, "Not Found"),
    ("GET /assistants/<missing>/subgraphs", None, 404, "Not Found"),
    ("GET /assistants/nope/graph", None, 404, "Not Found"),
    ("PATCH /assistants/<missing>", {}, 404, NO_ASSISTANT),
    ("POST /assistants/<missing>/latest", {"version": 1}, 404, NO_ASSISTANT),
    ("POST /assistants/<missing>/versions", {}, 404, NO_ASSISTANT),
    ("DELETE /assistants/<missing>", None, 404, "Assistant with ID <missing> not found"),
    ("POST /assistants", {"graph_id": "nope"}, 404, NO_GRAPH),
    ("PATCH /assistants/<assistant_id>", {"graph_id": "nope"}, 404, NO_GRAPH),
    ("POST /assistants/search", {"graph_id": "nope"}, 404, NO_GRAPH),
    ("POST /assistants/count", {"graph_id": "nope"}, 404, NO_GRAPH),
    (
        "POST /assistants/<assistant_id>/latest", {"version": 99}, 404,
        "Version 99 not found for assistant <assistant_id>",
    ),
    ("GET /threads/<missing>", None, 404, NO_THREAD),
    ("PATCH /threads/<missing>", {}, 404, "Not Found"),
    ("DELETE /threads/<missing>", None, 404, NO_THREAD),
    ("POST /threads/<missing>/copy", None, 409, NO_THREAD),
    ("GET /threads/<missing>/storage", None, 404, NO_THREAD),
    ("GET /threads/<missing>/state", None, 404, NO_THREAD),
    ("GET /threads/<missing>/state/<checkpoint_id>", None, 404, NO_THREAD),
    ("POST /threads/<missing>/state/checkpoint", {"checkpoint": {}}, 404, NO_THREAD),
    ("GET /threads/<missing>/history", None, 404, NO_THREAD),
    ("POST /threads/<missing>/history", {}, 404, NO_THREAD),
    ("POST /threads/<missing>/state", {"values": {}}, 404, NO_THREAD),
    ("GET /threads/<missing>/stream", None, 404, NO_THREAD),
    ("GET /threads/<missing>/runs", None, 404, NO_THREAD),
    ("GET /threads/<thread_id>/runs/<missing>", None, 404, "Not Found"),
    ("GET /threads/<idle_thread_id>/runs/<run_id>", None, 404, "Not Found"),
    ("GET /threads/<thread_id>/runs/<missing>/join", None, 404, "Not Found"),
    ("GET /threads/<thread_id>/runs/<missing>/stream", None, 404, "Not Found"),
    ("GET /threads/<idle_thread_id>/runs/<run_id>/join", None, 404, "Not Found"),
    ("GET /threads/<idle_thread_id>/runs/<run_id>/stream", None, 404, "Not Found"),
    ("GET /runs/<missing>/join", None, 404, "Not Found"),
    ("GET /runs/<missing>/stream", None, 404, "Not Found"),
    ("DELETE /threads/<thread_id>/runs/<missing>", None, 404, "Run not found"),
    ("DELETE /threads/<idle_thread_id>/runs/<run_id>", None, 404, "Run not found"),
    ("POST /threads/<missing>/runs", RUN, 404, NOTHING_FOUND),
    ("POST /threads/<missing>/runs/wait", RUN, 404, NOTHING_FOUND),
    ("POST /threads/<missing>/runs/stream", RUN, 404, NOTHING_FOUND),
    ("POST /threads/<idle_thread_id>/runs", {"assistant_id": MISSING}, 404, NOTHING_FOUND),
    ("POST /runs", {"assistant_id": MISSING}, 404, NOTHING_FOUND),
    ("POST /runs/wait", {"assistant_id": MISSING}, 404, NOTHING_FOUND),
    ("POST /runs/stream", {"assistant_id": MISSING}, 404, NOTHING_FOUND),
    ("POST /runs/batch", [{"assistant_id": MISSING}], 404, NOTHING_FOUND),
    ("POST /threads/<thread_id>/runs/<missing>/cancel", None, 404, "No runs found to cancel."),
    ("POST /threads/<idle_thread_id>/runs/<run_id>/cancel", None, 404, "No runs found to cancel."),
    ("POST /threads/<idle_thread_id>/runs/<ended_run_id>/cancel", None, 404, "No matching runs to cancel…"),
    ("POST /runs/cancel", {"thread_id": MISSING, "run_ids": [MISSING]}, 404, "No runs found to cancel."),
    ("POST /runs/cancel", {"status": "running"}, 404, "No runs found to cancel."),
    ("POST /threads/<thread_id>/runs/<run_id>/cancel?action=rollback&reason=taken", None, 422, "…"),
    ("POST /threads/<thread_id>/runs/<missing>/retry", None, 404, "Not Found"),
    ("POST /threads/<idle_thread_id>/runs/<run_id>/retry", None, 404, "Not Found"),
    ("POST /threads/<thread_id>/runs/<run_id>/retry", None, 409, REJECTED),
    (
        "POST /threads/<idle_thread_id>/runs/<ended_run_id>/retry", None, 409,
        "Run <ended_run_id> has not failed: its status is success.",
    ),
    ("GET /runs/crons/<missing>", None, 404, "Not Found"),
    ("DELETE /runs/crons/<missing>", None, 404, "Not Found"),
    ("PATCH /runs/crons/<missing>", {"enabled": False}, 404, "Cron '<missing>' not found"),
    ("POST /runs/crons", {**CRON, "assistant_id": "x"}, 404, "Assistant 'x' not found"),
    ("POST /runs/crons", {**CRON, "assistant_id": MISSING}, 404, "Assistant '<missing>' not found"),
    ("POST /threads/<missing>/runs/crons", CRON, 404, "Thread with ID '<missing>' not found…"),
    ("GET /nowhere", None, 404, "Not Found"),
    ("GET /threads", None, 405, "Method Not Allowed"),
    ("GET /assistants", None, 405, "Method Not Allowed"),
    ("GET /runs", None, 405, "Method Not Allowed"),
    ("POST /assistants/<assistant_id>/latest", {"version": 0}, 404, "Version 0 not found…"),
    ("POST /assistants/<assistant_id>/latest", {"version": -1}, 404, "Version -1 not found…"),
    ("POST /assistants/<assistant_id>/latest", {"version": 2**63}, 404, f"Version {2**63} not found…"),
    ("POST /runs/cancel", {"status": "all", "thread_id": MISSING, "run_ids": []}, 422, "either status…"),
    ("POST /runs/cancel", {"run_ids": [MISSING]}, 422, "either status…"),
    ("POST /runs/cancel", {"thread_id": MISSING, "run_ids": []}, 404, "No runs found to cancel."),
    ("POST /assistants", {"graph_id": "agent", "assistant_id": "<assistant_id>"}, 409, "Assistant <assistant_id> already exists"),
    ("POST /threads", {"thread_id": "<thread_id>"}, 409, "Thread with ID <thread_id> already exists"),
    ("POST /threads/<thread_id>/runs", {**RUN, "multitask_strategy": "reject"}, 409, REJECTED),
    ("POST /threads/<thread_id>/runs/wait", {**RUN, "multitask_strategy": "reject"}, 409, REJECTED),
    ("POST /threads/<thread_id>/runs/stream", {**RUN, "multitask_strategy": "reject"}, 409, REJECTED),
    ("POST /threads/<thread_id>/state", {"values": {}}, 409, "Thread <thread_id> has in-flight runs: <run_id>"),
    ("POST /runs", {"assistant_id": "nope"}, 422, UNKNOWN_ASSISTANT),
    ("POST /runs/wait", {"assistant_id": "nope"}, 422, UNKNOWN_ASSISTANT),
    ("POST /runs/stream", {"assistant_id": "nope"}, 422, UNKNOWN_ASSISTANT),
    ("POST /runs/batch", [RUN, {"assistant_id": "nope"}], 422, UNKNOWN_ASSISTANT),
    ("POST /threads/<idle_thread_id>/runs", {"assistant_id": "nope"}, 422, UNKNOWN_ASSISTANT),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, "checkpoint_id": "x"}, 422, "Invalid checkpoint ID"),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, "checkpoint": {"checkpoint_id": "x"}}, 422, "Invalid checkpoint ID"),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, "config": {"configurable": {"checkpoint_id": "x"}}}, 422, "Invalid checkpoint ID"),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, "checkpoint": {"thread_id": MISSING, "checkpoint_id": MISSING}}, 422, "checkpoint.thread_id: must be the id of this thread"),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, "interrupt_before": "ask"}, 422, 'interrupt_before: must be "*" or an array of node names'),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, "command": {"update": [["a"]]}}, 422, "command.update: must be…"),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, "command": {"goto": [{"input": 1}]}}, 422, "command.goto: must be…"),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, "stream_mode": ["values", "nope"]}, 422, "stream_mode.1: must be one of…"),
    ("POST /threads/<idle_thread_id>/runs", {**RUN, "if_thread_status": "x"}, 422, "if_thread_status: must be one of 'idle', 'busy', 'interrupted', 'error'"),
    ("POST /runs", {**RUN, "assistant_id": "\x00"}, 422, "assistant_id: must not contain…"),
    ("POST /runs", {**RUN, "command": {"goto": {"input": 1}}}, 422, "command.goto: …"),
    ("POST /runs", {**RUN, "command": {"goto": [["a"]]}}, 422, "command.goto: …"),
    ("POST /runs", {**RUN, "metadata": {"a": "\x00"}}, 422, "metadata: …"),
    ("POST /runs", {**RUN, "metadata": {"a": "x" * 70_000}}, 422, "metadata: …"),
    ("POST /runs", {**RUN, "config": {"metadata": {"a": "\x00"}}}, 422, "config.metadata: …"),
    ("POST /runs", {**RUN, "config": {"configurable": {"checkpoint_map": 5}}}, 422, "config.configurable.checkpoint_map: …"),
    ("POST /runs", {**RUN, "interrupt_after": [1]}, 422, "interrupt_after: …"),
    ("POST /runs", {**RUN, "stream_mode": "nope"}, 422, "stream_mode: …"),
    ("POST /runs", {**RUN, "after_seconds": 1e12}, 422, "after_seconds: …"),
    ("POST /runs", {**RUN, "checkpoint": {"checkpoint_map": {"": 1}}}, 422, "checkpoint.checkpoint_map: …"),
    ("POST /threads/<idle_thread_id>/state", {"checkpoint_id": "x"}, 422, "Invalid checkpoint ID"),
    ("POST /threads/<idle_thread_id>/state", {"checkpoint": {"thread_id": MISSING, "checkpoint_id": MISSING}}, 422, "checkpoint.thread_id: must be the id of this thread"),
    ("POST /runs/batch", [], 422, "must have at least 1 item"),
    ("POST /runs/batch", [RUN, {}], 422, "1.assistant_id: this field is required"),
    ("POST /runs/batch", [RUN, 5], 422, "1: must be an object"),
    ("POST /runs/batch", [RUN] * 1001, 422, "must have at most 1000 items"),
    ("POST /runs/batch", [RUN, {"assistant_id": MISSING}], 404, NOTHING_FOUND),
    ("POST /runs/cancel", {}, 422, "either status…"),
    ("POST /runs/cancel", {"status": "all", "thread_id": MISSING, "run_ids": [MISSING]}, 422, "either status…"),
    ("POST /runs/cancel", {"thread_id": MISSING}, 422, "either status…"),
    ("POST /runs/crons", {**CRON, "schedule": "x"}, 422, "Invalid cron schedule: 'x'…"),
    ("POST /runs/crons", {**CRON, "timezone": "Mars/One"}, 422, "Invalid timezone: 'Mars/One'"),
    ("PATCH /runs/crons/<cron_id>", {"schedule": "x"}, 422, "Invalid cron schedule: 'x'…"),
    ("POST /runs/crons", {**CRON, "schedule": "0 0 30 2 *"}, 422, "Invalid cron schedule…"),
    ("POST /runs/crons", {**CRON, "schedule": "*/5 * * * * *"}, 422, "Invalid cron schedule: '*/5 * * * * *'. It is due 1 s…"),
    ("POST /runs/crons", {**CRON, "end_time": "2020-01-01T00:00:00Z"}, 422, "end_time: must be in the future…"),
    ("POST /runs/crons", {**CRON, "input": [5]}, 422, "input: …"),
    ("POST /runs/crons", {**CRON, "stream_mode": "nope"}, 422, "stream_mode…"),
    *((f"GET /assistants/<assistant_id>/graph?xray={xray}", None, 422, "Invalid xray value") for xray in ("abc", "-1", "1.5", "", "²")),
    ("POST /assistants", {"graph_id": "agent", "metadata": {"a": "\x00"}}, 422, "metadata: …"),
    ("POST /assistants", {"graph_id": "agent", "metadata": {"\x00": 1}}, 422, "metadata: …"),
    ("POST /assistants", {"graph_id": "agent", "metadata": {"a": "x" * 70_000}}, 422, "metadata: …"),
    ("POST /assistants", {"graph_id": "agent", "name": "\x00"}, 422, "name: …"),
    ("GET /threads/<idle_thread_id>/state?select=[\"values\"", None, 422, "select: must be an array"),
    ("POST /threads/<idle_thread_id>/history", {"before": {"id": "x"}}, 422, "before…"),
    ("POST /threads/<idle_thread_id>/history", {"before": {"configurable": 5}}, 422, "before…"),
    ("POST /threads/<idle_thread_id>/state/checkpoint", {"checkpoint": {"checkpoint_map": {"": 5}}}, 422, "checkpoint.checkpoint_map…"),
    ("GET /threads/<thread_id>/runs?select=x", None, 422, "Invalid select columns: ['x']. Expected: {'run_id', …"),
    ("GET /threads/<thread_id>/state?select=x", None, 422, "Invalid select field 'x'"),
    ("POST /threads", {"supersteps": [{"updates": []}]}, 422, "supersteps.0.updates: must have at least 1 item"),
    ("POST /threads", {"metadata": {"a": ["\x00"]}}, 422, "metadata: …"),
    ("POST /threads", {"metadata": {"a": "x" * 70_000}}, 422, "metadata: …"),
    ("POST /threads/search", {"metadata": {"a": "x" * 65_536}}, 422, "metadata: …"),
    ("POST /threads/search", {"metadata": {"\x00": 1}}, 422, "metadata: …"),
    ("POST /threads/search", {"values": {str(n): n for n in range(101)}}, 422, "values: …"),
    ("POST /threads/search", {"values": {"a": {"b": {str(n): n for n in range(99)}}}}, 422, "values: …"),
    *(("POST /threads/search", {"extract": {"a": path}}, 422, "extract: …") for path in ("status", "valuesx", "values..x", "values[x]", 5)),
    ("POST /threads/search", {"extract": {"1a": "values"}}, 422, "extract: the alias '1a' is not an identifier"),
    ("POST /threads/search", {"extract": {"a": "other.b"}}, 422, "extract: the path 'other.b' must begin with…"),
    ("POST /threads/search", {"extract": {f"a{n}": "values" for n in range(11)}}, 422, "extract: at most 10 paths"),
    ("POST /threads/search", {"metadata": {"a": "\x00"}}, 422, "metadata: must not contain the character U+0000"),
    ("PUT /store/items", {"namespace": ["a.b"], "key": "k", "value": {}}, 422, "namespace.0: must not contain dots"),
    ("PUT /store/items", {"namespace": ["a"], "key": "k", "value": {"x": "\x00"}}, 422, "value…"),
    ("PUT /store/items", {"namespace": ["a"], "key": "k", "value": {}, "index": True}, 422, "index…"),
    ("POST /store/items/search", {"namespace_prefix": ["a.b"]}, 422, "namespace_prefix.0: must not contain dots…"),
    ("POST /store/items/search", {"filter": {"n": {"$in": [1]}}}, 400, "Unsupported operator: $in…"),
    ("POST /store/items/search", {"filter": {str(n): n for n in range(101)}}, 422, "filter…"),
    ("POST /store/items/search", {"query": "meaning"}, 422, "query…"),
]  # fmt: skip


def count_of_runs() -> int:
    with postgres.connection() as conn:
        return conn.execute(select(func.count()).select_from(RUNS)).scalar_one()


def test_each_refusal_has_its_words_and_creates_no_run(api: Api) -> None:
    blank: Any = api.post("/threads").json
    known = {**deployment_records(api), "missing": MISSING, "blank": blank["thread_id"]}
    before = count_of_runs()
    problems = []
    for asked, body, status, detail in REFUSALS:
        method, _, path = asked.partition(" ")
        response = api.call(method, filled(path, known), filled(body, known))
        said = filled(detail, known)
        answer: Any = response.json
        found = answer.get("detail") if isinstance(answer, dict) else None
        is_so = found == said or (said.endswith("…") and str(found).startswith(said[:-1]))
        if (response.status_code, is_so, set(answer or ())) != (status, True, {"detail"}):
            problems.append(f"{asked} {str(body)[:200]}: {response.status_code} {response.text[:200]}")
        if count_of_runs() != before:
            problems.append(f"{asked} {str(body)[:200]}: a run was created")
            before = count_of_runs()
    assert not problems, "\n".join(problems)
