"""The sample projects that graph hosts load in tests, and the names of their graphs."""

from __future__ import annotations

from pathlib import Path

# A complete project with one graph, `./graph.py:graph`.
SMALLEST = """
from typing import TypedDict
from langgraph.graph import StateGraph

class S(TypedDict, total=False):
    text: str

graph = StateGraph(S).add_node("node", lambda state: state).set_entry_point("node").compile()
"""
HOSTED = Path(__file__).parents[1] / "projects" / "hosted"
GRAPHS = (
    "steps", "builder", "named", "stops_before_two", "shows_log", "shows_little", "asks",
    "asks_and_shows_log", "asks_twice", "nested", "deep", "fails", "loops", "speaks", "repeats", "writes",
    "writes_much", "floods", "grows", "sleeps", "sleeps_in_thread", "swallows", "says", "says_much", "leaves",
    "leaves_async", "dies", "patches", "blocks", "looks", "shows_context", "points", "sends", "meets",
    "functional", "invokes_inside", "invokes_blocking", "invokes_blocking_on_loop", "plain_factory",
    "managed_factory", "failing_factory", "wrong_factory",
)  # fmt: skip
CALLING = (
    "uses_tool", "uses_tool_inside", "meets", "consumes", "consumes_and_fails", "consumes_and_sleeps",
)  # fmt: skip
STREAMS = (
    "react", "layers", "asks", "asks_both", "asks_inside", "asks_much", "forgetful", "speaks_twice", "writes",
    "writes_named", "writes_much", "gives", "pushes", "speaks_whole", "breaks_off",
    "fails_inside", "delegates", "waits", "censored", "without_censor", "numbers",
)  # fmt: skip
ALL = {name: f"./graphs.py:{name}" for name in GRAPHS}
CALLS = {name: f"./graphs.py:{name}" for name in CALLING}
ALL_STREAMS = {name: f"./streams.py:{name}" for name in STREAMS}
STOPPING = (
    "breaks_inside", "breaks_after_inside", "breaks_at_the_end_inside", "breaks_deep", "keeps_inside",
    "breaks_beside", "asks_deep", "asks_beside_break", "fails_beside_question", "fails_inside",
    "stops_after_end", "goes_to_parent", "sends_to_question", "sends_before_break", "joins", "defers",
    "half_joined", "forgets", "passes", "narrows", "modelled", "rooted", "asks_in_function", "remembers",
    "subscribes", "rebuilds",
)  # fmt: skip
STOPS = {name: f"./stops.py:{name}" for name in STOPPING}
PRINTING = (
    "lines", "beside", "traces", "falls", "fails_inside", "refused",
)  # fmt: skip
PRINTS = {f"prints_{name}": f"./prints.py:{name}" for name in PRINTING}
