"""A supervisor that hands a conversation to specialists, one after the other, and sums up at the end."""

from collections.abc import Sequence
from typing import Literal

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from model import call, chat_model

SUPERVISOR = "Hand each part of the question to the right specialist. When all parts are answered, sum up in one sentence."
SPECIALISTS = {
    "billing": "You are the billing specialist. Answer the part of the question about money, briefly.",
    "shipping": "You are the shipping specialist. Answer the part of the question about parcels, briefly.",
}
PREFIX = "transfer_to_"
FAKE_TOPICS = {"billing": ("refund", "invoice", "price"), "shipping": ("parcel", "order", "deliver")}


@tool
def transfer_to_billing() -> str:
    """Hand the conversation to the specialist for refunds, invoices and prices."""
    return "transferred"


@tool
def transfer_to_shipping() -> str:
    """Hand the conversation to the specialist for parcels and deliveries."""
    return "transferred"


async def supervisor(state: MessagesState) -> Command[Literal["billing", "shipping", "__end__"]]:
    model = chat_model(fake_supervisor).bind_tools([transfer_to_billing, transfer_to_shipping])
    reply = await model.ainvoke([SystemMessage(SUPERVISOR), *state["messages"]])
    if not reply.tool_calls:
        return Command(goto=END, update={"messages": [reply]})
    hand_off = reply.tool_calls[0]  # one specialist at a time
    chosen = AIMessage(reply.content, id=reply.id, name="supervisor", tool_calls=[hand_off])
    done = ToolMessage("transferred", tool_call_id=hand_off["id"], name=hand_off["name"])
    return Command(goto=hand_off["name"].removeprefix(PREFIX), update={"messages": [chosen, done]})


async def billing(state: MessagesState) -> Command[Literal["supervisor"]]:
    return await specialist("billing", state)


async def shipping(state: MessagesState) -> Command[Literal["supervisor"]]:
    return await specialist("shipping", state)


async def specialist(name: str, state: MessagesState) -> Command[Literal["supervisor"]]:
    """Answer as this specialist and hand back to the supervisor."""
    reply = await chat_model(fake_specialist).ainvoke([SystemMessage(SPECIALISTS[name]), *state["messages"]])
    return Command(goto="supervisor", update={"messages": [AIMessage(reply.content, id=reply.id, name=name)]})


def fake_supervisor(messages: Sequence[BaseMessage], tools: Sequence[BaseTool]) -> AIMessage:
    """Hand over by words of the last question, to each specialist once, and sum up who answered."""
    last = max(index for index, message in enumerate(messages) if message.type == "human")
    answered = [message.name for message in messages[last:] if message.name in SPECIALISTS]
    for name, words in FAKE_TOPICS.items():
        if name not in answered and any(word in messages[last].text.lower() for word in words):
            return call(f"{PREFIX}{name}")
    return AIMessage(
        f"Answered by {' and '.join(answered)}." if answered else "Ask me about a refund or a parcel."
    )


def fake_specialist(messages: Sequence[BaseMessage], tools: Sequence[BaseTool]) -> AIMessage:
    is_billing = messages[0].text == SPECIALISTS["billing"]
    return AIMessage(
        "The refund is paid within five days." if is_billing else "The parcel arrives on Friday."
    )


graph = (
    StateGraph(MessagesState)
    .add_node("supervisor", supervisor)
    .add_node("billing", billing)
    .add_node("shipping", shipping)
    .add_edge(START, "supervisor")
    .compile(name="supervisor")
)
