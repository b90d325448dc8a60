"""A refund that a person must approve. The graph pauses at `interrupt()` and resumes with the answer."""

from typing import (
    Literal,
    NotRequired,
)

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict  # pydantic rejects typing.TypedDict before Python 3.12

SMALL_AMOUNT = 20.0  # paid without approval


class Request(TypedDict):
    customer: str
    amount: float


class State(Request):
    letter: NotRequired[str]
    outcome: NotRequired[str]


def draft(state: State) -> Command[Literal["review", "pay"]]:
    missing = [name for name in Request.__annotations__ if name not in state]
    if missing:
        raise ValueError(
            f'the input lacks {" and ".join(missing)}: {{"customer": "Ada", "amount": 120}} has both'
        )
    letter = f"Dear {state['customer']}, we refund you {state['amount']:.2f}."
    return Command(update={"letter": letter}, goto="pay" if state["amount"] <= SMALL_AMOUNT else "review")


def review(state: State) -> Command[Literal["pay", "decline"]]:
    """Ask for approval. LangGraph restarts this node from its first line on resume, so it has no side effects."""
    answer = interrupt({"question": "Pay this refund?", "amount": state["amount"], "letter": state["letter"]})
    if not isinstance(answer, dict) or answer.get("approve") is not True:
        return Command(goto="decline")
    return Command(update={"letter": answer.get("letter", state["letter"])}, goto="pay")


def pay(state: State) -> dict[str, str]:
    return {"outcome": f"paid {state['amount']:.2f} to {state['customer']}"}


def decline(state: State) -> dict[str, str]:
    return {"outcome": f"declined the refund to {state['customer']}"}


graph = (
    StateGraph(State, input_schema=Request)
    .add_node("draft", draft)
    .add_node("review", review)
    .add_node("pay", pay)
    .add_node("decline", decline)
    .add_edge(START, "draft")
    .add_edge("pay", END)
    .add_edge("decline", END)
    .compile(name="approval")
)
