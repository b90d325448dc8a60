"""Research a topic: plan questions, investigate them in parallel subgraphs, write a report."""

import operator
from typing import Annotated

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from research.investigation import Context, investigation

ASPECTS = ("What is {topic}?", "Who needs {topic}?", "What speaks against {topic}?")


class Topic(TypedDict):
    topic: str


class State(Topic, total=False):
    questions: list[str]
    findings: Annotated[list[str], operator.add]
    report: str


def plan(state: State) -> dict[str, list[str]]:
    questions = [aspect.format(topic=state["topic"]) for aspect in ASPECTS]
    get_stream_writer()({"plan": questions})
    return {"questions": questions}


def each_question(state: State) -> list[Send]:
    return [Send("investigate", {"question": question}) for question in state["questions"]]


def write(state: State) -> dict[str, str]:
    newest = state["findings"][-len(state["questions"]) :]  # without the findings of earlier topics
    lines = [f"# {state['topic']}", "", *(f"- {finding}" for finding in newest)]
    return {"report": "\n".join(lines)}


graph = (
    StateGraph(State, input_schema=Topic, context_schema=Context)
    .add_node("plan", plan)
    .add_node("investigate", investigation)
    .add_node("write", write)
    .add_edge(START, "plan")
    .add_conditional_edges("plan", each_question, ["investigate"])
    .add_edge("investigate", "write")
    .add_edge("write", END)
    .compile(name="research")
)
