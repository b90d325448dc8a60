"""Secret values of a deployment: a graph host masks them in errors, but not in the results of graphs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from tests.support.hosts import Checkpointed, HostProcess, Run, graph_host
from workers.graph_host import masking, store

SECRET = "s3cret 'quoted\" back\\slash/é"
LINES = "-----first line-----\nsecond line"
SHORT = "a"
VARIABLES = {"TOKEN": SECRET, "PEM": LINES, "SHORT": SHORT, "MODE": "production"}
NAMES = ["TOKEN", "PEM", "SHORT"]
PROJECT = """
import base64, json, os
from typing import Any, TypedDict
from urllib.parse import quote

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

TOKEN, PEM = os.environ.pop("TOKEN"), os.environ["PEM"]


class State(TypedDict, total=False):
    how: str
    given: str
    asked: Any


def graph(node, schema=State):
    return StateGraph(schema).add_node("node", node).set_entry_point("node").compile()


def texts():
    return {
        "plain": TOKEN,
        "lines": PEM,
        "one line": PEM.splitlines()[1],
        "repr": repr({"token": TOKEN, "pem": PEM}),
        "bytes": repr(TOKEN.encode()),
        "json": json.dumps([TOKEN, PEM]),
        "utf-8 json": json.dumps([TOKEN, PEM], ensure_ascii=False),
        "url": f"https://host/?q={quote(TOKEN)}&r={quote(TOKEN, safe='')}",
        "basic": base64.b64encode(f"user:{TOKEN}".encode()).decode(),
        "small url": quote(TOKEN, safe="").lower(),
        "twice": repr(json.dumps(repr([TOKEN, PEM]))),
        "base64": base64.urlsafe_b64encode(TOKEN.encode()).decode(),
    }


def fail(state):
    get_stream_writer()({"token": TOKEN})
    if state["how"] == "group":
        try:
            raise KeyError(TOKEN)
        except KeyError as error:
            raise ExceptionGroup(f"group of {TOKEN}", [ValueError(TOKEN), OSError(PEM)]) from error
    if state["how"] == "class":
        raise type(f"Refused_{TOKEN}", (Exception,), {})(TOKEN)
    raise ValueError("it says: " + texts()[state["how"]] + " in production")


class Model(FakeListChatModel):
    def _call(self, *args, **kwargs):
        raise ValueError(f"401 for {TOKEN}")

    async def _astream(self, *args, **kwargs):
        raise ValueError(f"401 for {TOKEN}")
        yield


async def ask_model(state):
    return {"given": str(await Model(responses=["x"]).ainvoke("hi"))}


@tool
def search(query: str) -> str:
    "Search."
    raise ValueError(f"no access with {TOKEN}")


def ask(state):
    return {"asked": interrupt({"token": TOKEN})}


def give(state):
    return {"given": TOKEN}


fails = graph(fail)
outer = graph(fails)
models = graph(ask_model)
tools = graph(ToolNode([search], handle_tool_errors=False), MessagesState)
gives = graph(give)
asks = graph(ask)


def factory(config):
    raise RuntimeError(f"no graph without {TOKEN}")
"""
GRAPHS = ("fails", "outer", "models", "tools", "gives", "asks", "factory")
MODES = [
    "values",
    "updates",
    "tasks",
    "debug",
    "checkpoints",
    "custom",
    "events",
    "messages-tuple",
    "lifecycle",
    "tools",
]
HOWS = ["plain", "lines", "one line", "repr", "bytes", "json", "utf-8 json", "url", "small url", "twice", "basic", "base64", "group", "class"]  # fmt: skip
TOOL_CALL = {
    "messages": [
        {"type": "ai", "content": "", "tool_calls": [{"id": "c", "name": "search", "args": {"query": "x"}}]}
    ]
}


@pytest.fixture(scope="module")
def secretive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    directory = tmp_path_factory.mktemp("project")
    (directory / "agent.py").write_text(PROJECT)
    graphs = {name: f"./agent.py:{name}" for name in GRAPHS}
    with graph_host(directory, graphs, variables=VARIABLES, secrets=[*NAMES, "ABSENT"]) as host:
        yield host


def shows_secret(said: Any) -> bool:
    """Return whether the value contains a secret or most of one: plain, quoted, URL-encoded or in base64."""
    text = json.dumps(said, ensure_ascii=False) + json.dumps(said)
    encoded = base64.b64encode(SECRET.encode()).decode()[:16]
    parts = ("s3cret", "slash", "first line", "second line", encoded, "dXNlcjpzM2NyZXQ")
    return any(part in text for part in parts)


def errors(run: Run) -> Any:
    """Return all output of a run except what its nodes stream as custom events."""
    events = [event for event in run.events if not event[0].startswith(("custom", '~["custom"'))]
    return [events, run.outcome, run.answer, run.nodes, run.calls]


@pytest.mark.parametrize(
    ("graph_id", "how"), [*(("fails", how) for how in HOWS), ("outer", "plain"), ("outer", "group")]
)
def test_an_error_shows_no_secret_at_any_exit(secretive: HostProcess, graph_id: str, how: str) -> None:
    thread = Checkpointed(secretive)

    modes = [*MODES, "protocol"]
    modes.remove("events")
    run = thread.run(graph_id, {"how": how}, stream_mode=modes, subgraphs=True, traced=True)

    state = thread.query("state", graph_id)
    history = thread.query("history", graph_id, limit=10)
    assert run.outcome["status"] == "error"
    assert "***" in run.outcome["error"]["message"]
    assert "***" in json.dumps(run.outcome["state"]["tasks"])
    assert "***" in json.dumps(run.nodes)
    assert {"error", "lifecycle", "tasks", "debug"} <= {name.partition("|")[0] for name in run.names}
    assert not shows_secret(errors(run))
    assert not shows_secret([state, history])
    if how not in ("group", "class"):
        assert run.outcome["error"]["message"].endswith(" in production"), "no secret, though a variable"


def test_the_librarys_own_events_show_no_secret_in_an_error(secretive: HostProcess) -> None:
    run = secretive.run("tools", TOOL_CALL, stream_mode=["events", "tools"])

    assert "***" in json.dumps(run.events)
    assert not shows_secret([run.events, run.outcome, run.answer])


@pytest.mark.parametrize(("graph_id", "input"), [("tools", TOOL_CALL), ("models", {"how": "x"})])
def test_an_error_of_a_tool_or_a_model_shows_no_secret(
    secretive: HostProcess, graph_id: str, input: Any
) -> None:
    modes = ["tools", "messages-tuple", "tasks", "lifecycle", "protocol"]
    run = secretive.run(graph_id, input, stream_mode=modes, subgraphs=True, traced=True)

    assert run.outcome["status"] == "error"
    assert not shows_secret(errors(run))


def test_a_factory_that_fails_or_a_project_that_cannot_be_loaded_shows_no_secret(
    secretive: HostProcess, tmp_path: Path
) -> None:
    run = secretive.run("factory", {"how": "x"})
    answer = Checkpointed(secretive).query("state", "factory")

    assert run.outcome["error"] == {"error": "RuntimeError", "message": "no graph without ***"}
    assert answer["refused"]["message"] == "no graph without ***"

    (tmp_path / "agent.py").write_text("import os\nraise ValueError('with ' + repr(os.environ['TOKEN']))\n")

    with graph_host(tmp_path, {"a": "./agent.py:graph"}, variables=VARIABLES, secrets=NAMES) as host:
        said = host.ready

    assert said["error"]["message"].endswith("ValueError: with '***'")


def test_what_a_graph_returns_streams_or_asks_stays_as_it_is(secretive: HostProcess) -> None:
    given = secretive.run("gives", {"how": "x"}, stream_mode=["values", "updates"])
    asked = Checkpointed(secretive).run("asks", {"how": "x"})
    streamed = secretive.run("fails", {"how": "plain"}, stream_mode=["custom"])

    assert given.values["given"] == SECRET
    assert ("updates", {"node": {"given": SECRET}}) in given.events
    assert asked.outcome["state"]["interrupts"][0]["value"] == {"token": SECRET}
    assert streamed.events[0] == ("custom", {"token": SECRET})


def test_short_values_mask_nothing_and_the_longest_is_masked_as_a_whole() -> None:
    mask = masking.masker(["a", "12345", "ab cd", "", "   \n  "])
    text = "a banana 12345 ab%20cd MTIzNDU= \n"
    assert mask(text) == text
    assert masking.masker(["secret", "secret-two"])("secret-two, secret") == "***, ***"


@pytest.mark.parametrize("before", ["", "u", "us", "use"])
def test_base64_is_known_wherever_the_value_begins(before: str) -> None:
    encoded = base64.b64encode(f"{before}a-long-password".encode()).decode()
    assert "***" in masking.masker(["a-long-password"])(f"Basic {encoded}")
    assert quote("a-long-password") == "a-long-password"


def quotations(value: str) -> Iterator[str]:
    yield from (value, repr(value), repr(repr(value)), repr(value.encode()), repr(json.dumps(value)))
    yield from (json.dumps(value), json.dumps(json.dumps(json.dumps(value))))
    yield from (quote(value), quote(value, safe=""), quote_plus(value))


@pytest.mark.parametrize(
    "value",
    [
        "+c😀\\Yxa=",
        "\\\\server\\share\\",
        "'\"quoted\"'",
        "é\\é'é\x01\x7f",
        "a" * 127,
        "b" * 129,
        "".join(map(str, range(2_000))),
    ],
)
def test_no_part_of_a_value_is_left(value: str) -> None:
    mask = masking.masker([value])
    for quoted in quotations(value):
        assert mask(f"<{quoted}>").replace("*", "").strip("<b'\"\\>") == "", quoted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("\\" * 8 + "end", "\\" * 8_000),
        ("/from/a/slash", "\\" * 8_000 + "/from/a/"),
        ("'from a quote'", "\\'" * 4_000),
        ('"' * 60 + "end", quote('"' * 60)),
        ("é" * 60 + "end", json.dumps("é" * 60)),
        ("a" * 20_000 + "end", "b" * 8_000 + "a" * 60),
    ],
)
def test_what_almost_is_a_value_is_passed_over_at_once(value: str, text: str) -> None:
    assert masking.masker([value])(text) == text


@pytest.mark.parametrize("shown", ["sk-sec", "sk-secre"])
@pytest.mark.parametrize("filler", ["x", "é", "😀"])
def test_nor_is_the_beginning_of_one_shown_where_its_line_was_cut_off(shown: str, filler: str) -> None:
    mask = masking.masker(["sk-secret", "another"])
    line = f"{filler * 9_000}".encode()[: masking.MAX_RECORD_BYTES - len(shown)].decode("utf-8", "ignore")
    assert mask(line + shown) == f"{line}***"
    assert mask(f"short {shown}") == f"short {shown}"


def test_a_reason_is_masked_before_it_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise ValueError("no access with the api_key " + "x" * (store.MAX_REASON - 35) + "a-long-password")

    monkeypatch.setattr(store, "ensure_embeddings", fail)
    monkeypatch.setattr(masking, "_mask", masking.masker(["a-long-password"]))

    with pytest.raises(store.LoadFailed, match=r"xxx\*\*\*$"):
        store.load_index({"embed": "provider:model", "dims": 1})
