"""Traces: continued from the caller, exported, and absent where tracing is off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import orjson
import pytest
from flask import Flask, Response

from shared.infra import tracing
from shared.infra.otel import OtelTracer
from shared.infra.trace_context import Context
from shared.models import RunStatus, ThreadStatus
from shared.runs.webhooks import Delivery
from tests.contract.conftest import Api
from tests.contract.statements import execute
from tests.support.acting import Actor
from tests.support.collector import Collector, Seen, collecting
from web.gate import observation
from workers import run_trace
from workers.run_trace import RunTrace
from workers.runner.host import MALFORMED_FRAME_ERRORS
from workers.upkeep import webhook_deliveries

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{CALLER}-01"
SENT = {"traceparent": PARENT, "tracestate": "vendor=1"}
FAILURE = {"error": "ValueError", "message": "boom"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Collector that receives this process's traces during the test."""
    with collecting() as collector:
        tracer = OtelTracer(collector.url, process="web", instance="box:1:a")
        tracing.use(tracer)
        try:
            yield collector
        finally:
            tracing.use(None)
            tracer.close()


def flush() -> None:
    tracer = tracing.tracer()
    assert tracer is not None
    tracer.flush()


def created(api: Api, thread_id: str | None = None, **headers: str) -> Any:
    path = "/runs" if thread_id is None else f"/threads/{thread_id}/runs"
    response = api.post(path, {"assistant_id": "agent"}, headers=headers)
    assert response.status_code == 200, response.text
    return response.json


def configurable(run: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in run["kwargs"]["config"]["configurable"].items()
        if name.startswith("__otel")
    }


def test_a_callers_trace_is_kept_with_the_run_and_goes_on(api: Api) -> None:
    run = created(api, **SENT)
    kept = {"__otel_traceparent__": PARENT, "__otel_tracestate__": "vendor=1"}
    assert configurable(run) == kept
    assert configurable(created(api)) == {}
    row: Any = {"kwargs": run["kwargs"], "run_id": run["run_id"]}
    delivery = Delivery(
        UUID(int=1),
        api.deployment.id,
        "chat",
        None,
        UUID(run["run_id"]),
        "",
        "success",
        row,
        None,
        None,
        1,
        "a",
    )
    sent = webhook_deliveries.headers(delivery, b"", webhook_deliveries.datetime.now(webhook_deliveries.UTC))
    assert {name: sent[name] for name in SENT} == SENT


def test_what_is_no_trace_is_left_out(api: Api, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        "",
        "nonsense",
        f"00-{'0' * 32}-{CALLER}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        PARENT.upper(),
        PARENT + "-x",
    ]
    for traceparent in rows:
        with subtests.test(traceparent=traceparent):
            assert configurable(created(api, traceparent=traceparent)) == {}


def test_another_try_belongs_to_who_asks_for_it(api: Api, thread_id: str, own_key: None) -> None:
    run = created(api, thread_id, **SENT)
    Actor(run["run_id"]).finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=FAILURE)
    again = api.post(f"/threads/{thread_id}/runs/{run['run_id']}/retry")
    assert again.status_code == 200
    assert configurable(again.json) == {}


def test_a_run_is_one_trace_from_its_request_on(api: Api, thread_id: str, collector: Collector) -> None:
    run = created(api, thread_id, **SENT)
    actor = Actor(run["run_id"], owner="box:1:a")
    trace = run_trace.begin(actor.run)
    assert trace is not None
    trace.node(b'{"id":"t","name":"ask","within":null,"at":1800000000.5,"ended":false,"error":null}')
    trace.node(b'{"id":"u","name":"deep","within":"t","at":1800000000.6,"ended":false,"error":null}')
    trace.node(b'{"id":"u","name":"deep","within":"t","at":1800000000.7,"ended":true,"error":"no"}')
    trace.node(b'{"id":"t","name":"ask","within":null,"at":1800000001.5,"ended":true,"error":null}')
    run_trace.write_run_span(actor.run, "success")
    trace.end()
    flush()

    spans = {span.name: span for span in collector.of_run(run["run_id"])}
    request = spans.pop("POST /d/<deployment>/threads/<thread_id>/runs")
    assert {span.trace_id for span in [request, *spans.values()]} == {TRACE}
    assert request.parent_id == CALLER
    assert request.attributes["http.response.status_code"] == 200
    assert configurable(run)["__otel_traceparent__"] == f"00-{TRACE}-{request.span_id}-01"
    own = spans["run agent"]
    parents = {name: span.parent_id for name, span in spans.items()}
    assert parents == {
        "run agent": request.span_id,
        "wait": own.span_id,
        "attempt 1": own.span_id,
        "node ask": spans["attempt 1"].span_id,
        "node deep": spans["node ask"].span_id,
    }
    assert trace.context.traceparent == f"00-{TRACE}-{spans['attempt 1'].span_id}-01"
    assert spans["node ask"].ended_ns - spans["node ask"].started_ns == 1_000_000_000
    assert {name for name, span in spans.items() if span.has_failed} == {"node deep"}
    assert own.attributes["runyard.status"] == "success"
    assert own.resource["service.name"] == "runyard"


def test_attempts_and_failures_stand_in_the_runs_trace(
    api: Api, thread_id: str, collector: Collector
) -> None:
    run = created(api, thread_id)
    execute("UPDATE run SET attempt = 1")
    actor = Actor(run["run_id"])
    trace = run_trace.begin(actor.run)
    assert trace is not None
    trace.failed("ValueError: boom")
    run_trace.write_run_span(actor.run, "error", "ValueError: boom")
    trace.end()
    flush()

    spans = {span.name: span for span in collector.of_run(run["run_id"])}
    assert "wait" not in spans, "only the first attempt has waited for it"
    assert spans["attempt 2"].has_failed
    assert spans["run agent"].has_failed
    assert spans["run agent"].attributes["runyard.attempts"] == 2


def call(**fields: Any) -> bytes:
    """Return the body of a CALL frame."""
    times = {"from": 1800000000.5, "until": 1800000001.5}
    return orjson.dumps({"id": "m", "operation": "chat", "within": None, "name": "gpt", **times, **fields})


@pytest.fixture
def attempt(api: Api, thread_id: str, collector: Collector) -> RunTrace:
    trace = run_trace.begin(Actor(created(api, thread_id)["run_id"]).run)
    assert trace is not None
    return trace


def ended(attempt: RunTrace, collector: Collector) -> dict[str, Seen]:
    """End the attempt and return its spans by name."""
    attempt.end()
    flush()
    trace_id = f"{attempt.context.trace_id:032x}"
    return {span.name: span for span in collector.spans if span.trace_id == trace_id}


def test_model_and_tool_calls_are_spans_by_the_conventions_within_their_nodes(
    attempt: RunTrace, collector: Collector, thread_id: str
) -> None:
    usage = {
        "input_tokens": 5,
        "output_tokens": 7,
        "total_tokens": 12,
        "input_token_details": {"cache_read": 2, "cache_creation": 1},
        "output_token_details": {"reasoning": 3},
    }
    attempt.call(
        call(
            within="tool",
            model="gpt",
            provider="google_genai",
            response_model="gpt-1",
            response="r1",
            finish=["stop"],
            stop=["END"],
            first=1800000000.75,
            settings={"temperature": 0, "max_completion_tokens": 9, "top_k": 1, "unknown": 1},
            usage=usage,
        )
    )
    attempt.call(call(id="tool", operation="execute_tool", within="t", name="look", tool_call="call-1"))
    attempt.node(b'{"id":"t","name":"ask","within":null,"at":1800000000.5,"ended":false,"error":null}')

    spans = ended(attempt, collector)
    chat, tool = spans["chat gpt"], spans["execute_tool look"]
    assert (chat.parent_id, tool.parent_id) == (tool.span_id, spans["node ask"].span_id)
    assert (chat.kind, tool.kind) == ("client", "internal")
    assert (chat.ended_ns - chat.started_ns, chat.has_failed) == (1_000_000_000, False)
    assert chat.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.conversation.id": thread_id,
        "gen_ai.request.model": "gpt",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.top_k": 1,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.request.stream": True,
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.response.model": "gpt-1",
        "gen_ai.response.id": "r1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.cache_write.input_tokens": 1,
        "gen_ai.usage.cache_creation.input_tokens": 1,
        "gen_ai.usage.reasoning.output_tokens": 3,
    }
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.conversation.id": thread_id,
        "gen_ai.tool.name": "look",
        "gen_ai.tool.call.id": "call-1",
    }
    agent = spans["attempt 1"].attributes
    assert (agent["gen_ai.operation.name"], agent["gen_ai.agent.name"]) == ("invoke_agent", "agent")


def test_a_failed_call_is_a_failed_span_and_a_question_is_not(
    attempt: RunTrace, collector: Collector
) -> None:
    attempt.call(call(error="RateLimitError", message="slow down"))
    attempt.call(call(id="q", operation="execute_tool", name="ask", interrupted=True))

    spans = ended(attempt, collector)
    assert spans["chat gpt"].has_failed
    assert spans["chat gpt"].attributes["error.type"] == "RateLimitError"
    assert not spans["execute_tool ask"].has_failed
    assert spans["execute_tool ask"].attributes["runyard.interrupted"] is True


def test_an_attempt_has_at_most_a_thousand_spans_of_calls_and_counts_the_rest(
    attempt: RunTrace, collector: Collector
) -> None:
    for number in range(1_005):
        attempt.call(call(id=str(number), operation="execute_tool"))
    attempt.call(b'{"dropped":9000}')

    spans = ended(attempt, collector)
    assert spans["attempt 1"].attributes["runyard.dropped_calls"] == 9_005
    assert len(collector.named("execute_tool gpt")) == 1_000


def test_records_of_hostile_code_do_no_harm(
    attempt: RunTrace, collector: Collector, subtests: pytest.Subtests
) -> None:
    frames = (
        b"1",
        b"[]",
        call(operation="x"),
        call(until=-1),
        call(until=1e300),
        call(**{"from": "x"}),
        b'{"dropped":"x"}',
        b'{"id":"m","name":"n","within":null,"at":1e300,"ended":false}',
    )
    for body in frames:
        with subtests.test(body=body), pytest.raises(MALFORMED_FRAME_ERRORS):
            (attempt.node if b'"at"' in body else attempt.call)(body)
    attempt.call(
        call(
            name="n" * 1_000,
            model={"a": 1},
            provider=[],
            finish="stop",
            stop=[1, 2],
            settings=[],
            usage={"input_tokens": 1 << 63, "output_tokens": "7", "input_token_details": 3},
            error=5,
            input="x" * 100_000,
        )
    )

    (span,) = [span for span in ended(attempt, collector).values() if span.name.startswith("chat")]
    assert span.name == f"chat {'n' * 200}"
    assert len(span.attributes.pop("gen_ai.input.messages")) == 32_768
    assert set(span.attributes) == {"gen_ai.operation.name", "gen_ai.conversation.id"}


def test_the_operators_limits_of_attributes_apply_to_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
    with collecting() as collector:
        tracer = OtelTracer(collector.url, process="worker", instance="box:1:a")
        parent, own = Context(1, 2), Context(1, 3)
        tracer.write(
            "chat", parent=parent, context=own, from_ns=1, until_ns=2, attributes={"gen_ai.tool.name": "look"}
        )
        tracer.close()
    assert [span.attributes for span in collector.spans] == [{"gen_ai.tool.name": "loo"}]


def test_a_host_reports_nothing_for_a_trace_that_is_not_sampled(api: Api, collector: Collector) -> None:
    for flags, is_sampled in (("01", True), ("00", False)):
        run = created(api, traceparent=f"00-{TRACE}-{CALLER}-{flags}")
        trace = run_trace.begin(Actor(run["run_id"]).run)
        assert trace is not None
        assert trace.is_sampled is is_sampled
        trace.call(call())
    flush()
    (chat,) = collector.named("chat gpt")
    assert "gen_ai.conversation.id" not in chat.attributes, "a stateless run has no conversation"


def test_an_app_s_own_status_is_passed_on(app: Flask, collector: Collector) -> None:
    with app.test_request_context("/"):
        observed = observation.begin()
        observed.start_span()
        observed.finish(Response(status=599))
    flush()
    (span,) = collector.spans
    assert (span.has_failed, span.attributes["http.response.status_code"]) == (True, 599)


def test_what_is_asked_all_the_time_is_not_traced(api: Api, collector: Collector) -> None:
    for path in ("/ok", "/d/chat/ok", "/metrics", "/d/chat/metrics"):
        assert api.client.get(path).status_code == 200
    assert api.get("/threads/nonsense").status_code == 422
    flush()
    (span,) = collector.spans
    assert (span.name, span.attributes["http.response.status_code"]) == (
        "GET /d/<deployment>/threads/<thread_id>",
        422,
    )


PROGRAM = """
import sys
sys.modules["opentelemetry"] = None  # not installed
from shared.infra import tracing
from shared.setting_values import BadSetting
from shared.settings import Settings
import web.app, workers.runner.runner, workers.upkeep.upkeep
tracing.configure(Settings.from_env({}), "web")
assert tracing.tracer() is None
assert "shared.infra.otel" not in sys.modules
try:
    tracing.configure(Settings.from_env({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}), "web")
except BadSetting as error:
    assert "extra `otel`" in str(error)
else:
    raise AssertionError("it must say what is lacking")
"""


def test_where_it_is_off_nothing_of_it_is_imported_nor_needed() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
