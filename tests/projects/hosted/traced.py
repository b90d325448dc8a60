"""A graph that tells where what it traces goes."""

from __future__ import annotations

import os
from typing import TypedDict

from langchain_core.callbacks import CallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers import LangChainTracer
from langgraph.graph import START, StateGraph
from langsmith.utils import get_tracer_project


class State(TypedDict, total=False):
    project: str | None
    example: str | None
    tracers: int
    variable: str | None


def look(state: State, config: RunnableConfig) -> State:
    manager = CallbackManager.configure(config.get("callbacks"))
    tracers = [each for each in manager.handlers if isinstance(each, LangChainTracer)]
    (one,) = tracers or [None]
    return {
        "project": one and (one.project_name or get_tracer_project()),
        "example": one and one.example_id and str(one.example_id),
        "tracers": len(tracers),
        "variable": os.environ.get("LANGSMITH_PROJECT"),
    }


graph = StateGraph(State).add_node(look).add_edge(START, "look").compile()
