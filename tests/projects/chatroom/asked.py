"""Graphs that a page asks people for: typed input, a context, answers in the shapes that libraries agree on, and a flood.

`reviews`, `reviews_each` and `inbox` ask as `HumanInTheLoopMiddleware` (batched, and one call at a time) and as the
older `HumanInterrupt` do, and say what they were answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import BaseModel, Field

CALLS = [{"name": "pay", "args": {"to": "Ada", "amount": 20}}, {"name": "write", "args": {"to": "Ada"}}]


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Address(BaseModel):
    street: str
    number: int | None = None


class Order(BaseModel):
    """What is ordered."""

    customer: str = Field(description="Who orders it.")
    amount: int = Field(1, description="How many.", ge=1)
    weight: float | None = None
    urgent: bool = False
    size: Size = Size.SMALL
    colours: list[str] = []
    address: Address | None = None
    extra: dict[str, Any] = {}
    steps: list[str] = []


@dataclass
class Manner:
    """How an order is taken."""

    tone: Annotated[Literal["plain", "warm"], Field(description="How it is said.")] = "plain"
    repeat: int = 1
    words: list[str] = field(default_factory=list)


def check(state: Order) -> dict[str, Any]:
    get_stream_writer()({"checked": state.customer})
    return {"steps": ["checked"]}


def is_urgent(state: Order) -> Literal["yes", "no"]:
    return "yes" if state.urgent else "no"


def rush(state: Order) -> dict[str, Any]:
    return {"steps": [*state.steps, "rushed"]}


def take(state: Order, runtime: Runtime[Manner]) -> dict[str, Any]:
    tone = runtime.context.tone if runtime.context else "plain"
    return {"steps": [*state.steps, f"{tone}: {state.amount} {state.size.value} for {state.customer}"]}


def fold(state: Order) -> dict[str, Any]:
    return {"steps": [*state.steps, "folded"]}


def wrap(state: Order) -> dict[str, Any]:
    return {"steps": [*state.steps, "wrapped"]}


_packing = StateGraph(Order)
_packing.add_node("fold", fold)
_packing.add_node("wrap", wrap)
_packing.add_edge(START, "fold")
_packing.add_edge("fold", "wrap")
_packing.add_edge("wrap", END)

_orders = StateGraph(Order, context_schema=Manner)
_orders.add_node("check", check)
_orders.add_node("rush", rush)
_orders.add_node("take", take)
_orders.add_node("pack", _packing.compile())
_orders.add_edge(START, "check")
_orders.add_conditional_edges("check", is_urgent, {"yes": "rush", "no": "take"})
_orders.add_edge("rush", "take")
_orders.add_edge("take", "pack")
_orders.add_edge("pack", END)
orders = _orders.compile()


def says(node: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node(node.__name__, node)
    graph.add_edge(START, node.__name__)
    graph.add_edge(node.__name__, END)
    return graph.compile()


def _told(answers: Any) -> dict[str, Any]:
    return {"messages": [AIMessage(f"answered: `{json.dumps(answers, sort_keys=True)}`")]}


def review(state: MessagesState) -> dict[str, Any]:
    actions = [{**call, "description": f"May **{call['name']}** run?"} for call in CALLS]
    allowed = (["approve", "edit", "reject"], ["approve", "respond"])
    configs = [
        {"action_name": call["name"], "allowed_decisions": each}
        for call, each in zip(CALLS, allowed, strict=True)
    ]
    return _told(interrupt({"action_requests": actions, "review_configs": configs})["decisions"])


def review_each(state: MessagesState) -> dict[str, Any]:
    call = CALLS[0]
    request = {"type": "tool_approval", "tool_call_id": "call-1", **call, "description": "May it run?"}
    return _told(interrupt(request))


def post(state: MessagesState) -> dict[str, Any]:
    config = {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True}
    action = {"action": "pay", "args": CALLS[0]["args"]}
    request = {"action_request": action, "config": config, "description": "# A letter\n\nMay it go out?"}
    return _told(interrupt([request])[0])


reviews, reviews_each, inbox = says(review), says(review_each), says(post)


class Fountain(BaseChatModel):
    """Told `COUNT PER_SECOND`, says so many words at that pace, as Markdown."""

    @property
    def _llm_type(self) -> str:
        return "fountain"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        count, pace = (int(word) for word in str(messages[-1].content).split())
        started = asyncio.get_running_loop().time()
        for number in range(count):
            late = started + number / pace - asyncio.get_running_loop().time()
            if late > 0:
                await asyncio.sleep(late)
            text = f"**{number}**\n\n" if number % 50 == 49 else f"word{number} "
            yield ChatGenerationChunk(message=AIMessageChunk(content=text))
        yield ChatGenerationChunk(message=AIMessageChunk(content="the end"))


async def pour(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Fountain().ainvoke(state["messages"])]}


pours = says(pour)
