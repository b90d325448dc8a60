"""Agents with a scripted model, whose tools leave traces when they are executed."""

from __future__ import annotations

import json
import operator
import socket
import threading
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.caches import InMemoryCache
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.channels.delta import DeltaChannel
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode, ToolRuntime, tools_condition
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, Send, interrupt

executed: list[str] = []  # names of the tools that this process has executed


class Scripted(BaseChatModel):
    """Calls the tools that the newest question lists as JSON, [[name, arguments] …], and then repeats their results."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        executed.append("model")
        last = messages[-1]
        if isinstance(last, HumanMessage):
            calls = [
                {"name": name, "args": arguments, "id": f"{time.monotonic_ns()}-{n}"}
                for n, (name, arguments) in enumerate(json.loads(str(last.content)))
            ]
            message = AIMessage("", tool_calls=calls)
        else:
            message = AIMessage(" ".join(str(m.content) for m in messages if isinstance(m, ToolMessage)))
        message.usage_metadata = {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3}
        return ChatResult(generations=[ChatGeneration(message=message)])


def reduced(messages: list[BaseMessage] | None, writes: list[Any]) -> list[BaseMessage]:
    whole: Any = messages or []
    for written in writes:
        whole = add_messages(whole, written)
    return whole


class State(MessagesState, total=False):
    notes: Annotated[list[str], operator.add]
    hitl_edited_tool_calls: dict[str, Any]


@tool
def write(path: str, text: str = "x") -> str:
    """Write a file."""
    executed.append("write")
    Path(path).write_text(text)
    return f"wrote {text}"


@tool
async def count(what: str) -> str:
    """Count up."""
    executed.append("count")
    return f"{what} {executed.count('count')}"


@tool(response_format="content_and_artifact")
def picture(name: str) -> tuple[str, Any]:
    """Return a picture with its bytes."""
    executed.append("picture")
    return f"picture {name}", {"bytes": b"\x00\x01", "at": (1, 2)}


@tool
def breaks(reason: str) -> str:
    """Raise an error."""
    raise ValueError(reason)


@tool
def remember(text: str, call_id: Annotated[str, InjectedToolCallId]) -> Command:
    """Add a note to the state."""
    executed.append("remember")
    return Command(update={"notes": [text], "messages": [ToolMessage("noted", tool_call_id=call_id)]})


@tool
def leave(call_id: Annotated[str, InjectedToolCallId]) -> Command:
    """Go to another node."""
    executed.append("leave")
    return Command(goto="elsewhere", update={"messages": [ToolMessage("left", tool_call_id=call_id)]})


@tool
def files(name: str, runtime: ToolRuntime) -> str:
    """Add a note without a command, as the file tools of deepagents do."""
    executed.append("files")
    runtime.config["configurable"]["__pregel_send"]([("notes", [name])])
    return f"stored {name}"


@tool
async def inspects(
    topic: str,
    state: Annotated[dict, InjectedState],
    store: Annotated[Any, InjectedStore()],
    runtime: ToolRuntime,
) -> str:
    """Use injected arguments."""
    executed.append("inspects")
    return f"{topic}: {len(state['messages'])} messages"


@tool
def asks(question: str) -> str:
    """Ask a person."""
    return f"answered {interrupt(question)}"


@tool
def stray(path: str) -> str:
    """Call another tool in a thread of its own, without the context of the run."""
    thread = threading.Thread(target=lambda: write.invoke({"path": path}))
    thread.start()
    thread.join()
    return "started"


TOOLS = [write, count, picture, breaks, remember, leave, files, inspects, asks, stray]
model = Scripted()


async def think(state: State) -> dict:
    return {"messages": [await model.ainvoke([("system", "be brief"), *state["messages"]])]}


async def think_louder(state: State) -> dict:
    message = await model.ainvoke(state["messages"])
    return {"messages": [message if message.tool_calls else AIMessage(f"{message.content}!")]}


def elsewhere(state: State) -> dict:
    return {"notes": ["elsewhere"]}


def agent_of(*tools: Any, **options: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node(think)
    builder.add_node("tools", ToolNode(tools or TOOLS, handle_tool_errors=True))
    builder.add_node(elsewhere)
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition)
    builder.add_edge("tools", "think")
    return builder.compile(**options)


agent = agent_of()
louder = (
    StateGraph(State).add_node("think", think_louder).add_node("tools", ToolNode(TOOLS))
    .add_edge(START, "think").add_conditional_edges("think", tools_condition).add_edge("tools", "think")
    .compile()
)  # fmt: skip
outer = StateGraph(State).add_node("inner", agent).add_edge(START, "inner").compile()


# As in `create_agent`: each call is a task of its own.
def each_call(state: State) -> list[Send]:
    calls = getattr(state["messages"][-1], "tool_calls", ())
    return [Send("tools", {**state, "messages": [AIMessage("", tool_calls=[call])]}) for call in calls]


fanned = (
    StateGraph(State).add_node(think).add_node("tools", ToolNode(TOOLS))
    .add_edge(START, "think").add_conditional_edges("think", each_call, ["tools"]).add_edge("tools", "think")
    .compile()
)  # fmt: skip


# As in deepagents: the checkpoints have the changes of the messages.
class Changes(TypedDict):
    messages: Annotated[list[BaseMessage], DeltaChannel(reduced)]


def fans_changes(state: Changes) -> list[Send]:
    calls = getattr(state["messages"][-1], "tool_calls", ())
    return [Send("tools", {"messages": [AIMessage("", tool_calls=[call])]}) for call in calls]


changes = (
    StateGraph(Changes).add_node("think", think, input_schema=Changes).add_node("tools", ToolNode(TOOLS))
    .add_edge(START, "think").add_conditional_edges("think", fans_changes, ["tools"]).add_edge("tools", "think")
    .compile()
)  # fmt: skip


def adjust(request: ToolCallRequest, execute: Any) -> Any:
    """As middleware of LangChain: the tool gets other arguments than the message has."""
    call = request.tool_call
    return execute(request.override(tool_call={**call, "args": {"what": call["args"]["what"] + "!"}}))


async def adjust_async(request: ToolCallRequest, execute: Any) -> Any:
    call = request.tool_call
    return await execute(request.override(tool_call={**call, "args": {"what": call["args"]["what"] + "!"}}))


adjusting = (
    StateGraph(State).add_node(think)
    .add_node("tools", ToolNode([count], wrap_tool_call=adjust, awrap_tool_call=adjust_async))
    .add_edge(START, "think").add_conditional_edges("think", tools_condition).add_edge("tools", "think")
    .compile()
)  # fmt: skip


# As in deepagents: a tool delegates to another agent, and returns its answer as a command.
specialist = agent_of(write, count)


@tool
async def task(description: str, runtime: ToolRuntime) -> Command:
    """Delegate to a specialist."""
    executed.append("task")
    answer = await specialist.ainvoke({"messages": [HumanMessage(description)]})
    text = answer["messages"][-1].content
    return Command(
        update={"notes": [text], "messages": [ToolMessage(text, tool_call_id=runtime.tool_call_id)]}
    )


delegating = agent_of(task, count)


# A tool of a subgraph hands over to another agent of the parent graph.
@tool
def hand_over(runtime: ToolRuntime) -> Command:
    """Hand over to Bob."""
    executed.append("hand_over")
    message = ToolMessage("handed over", tool_call_id=runtime.tool_call_id)
    update = {"notes": ["to bob"], "messages": [*runtime.state["messages"], message]}
    return Command(goto="bob", graph=Command.PARENT, update=update)


async def bob(state: State) -> dict:
    return {"notes": ["bob"], "messages": [AIMessage("Bob here")]}


team = StateGraph(State).add_node("alice", agent_of(hand_over)).add_node(bob).add_edge(START, "alice").compile()


# Both are agents, and the name of the second one comes first.
pair = StateGraph(State).add_node("writer", agent_of(hand_over)).add_node("bob", agent_of()).add_edge(START, "writer").compile()


def reviewed(state: State) -> dict:
    """As LangChain's review by a person: the message has the model's call, the state has the one to execute."""
    [call] = state["messages"][-1].tool_calls
    return {"hitl_edited_tool_calls": {call["id"]: {"name": "count", "args": {"what": "edited"}}}}


async def executes(state: State) -> dict:
    [call] = state["messages"][-1].tool_calls
    return {"messages": [await count.ainvoke({**call, **state["hitl_edited_tool_calls"][call["id"]]})]}


reviewing = (
    StateGraph(State)
    .add_node(think).add_node(reviewed).add_node(executes)
    .add_edge(START, "think").add_edge("think", "reviewed").add_edge("reviewed", "executes")
    .compile()
)  # fmt: skip


def by_hand(state: State) -> dict:
    """The loop of LangGraph's tutorials: the node builds the messages itself."""
    calls = json.loads(str(state["messages"][-1].content))
    by_name = {each.name: each for each in TOOLS}
    ai = AIMessage("", tool_calls=[{"name": n, "args": a, "id": str(i)} for i, (n, a) in enumerate(calls)])
    answers = [
        ToolMessage(by_name[c["name"]].invoke(c["args"]), tool_call_id=c["id"]) for c in ai.tool_calls
    ]
    return {"messages": [ai, *answers], "notes": ["by hand"]}


hands = StateGraph(State).add_node(by_hand).add_edge(START, "by_hand").compile()


async def stores(state: State) -> dict:
    """Write to the store, and show what is read afterwards."""
    store = get_store()
    await store.aput(("a", "b"), "new", {"n": 2})
    await store.adelete(("a",), "old")
    found = await store.asearch(("a",), filter={"n": {"$gte": 1}})
    names = await store.alist_namespaces(prefix=("a",))
    gone, kept = await store.aget(("a",), "old"), await store.aget(("a",), "kept")
    shown = {"found": [item.key for item in found], "names": names, "gone": gone, "kept": kept and kept.value}
    return {"notes": [json.dumps(shown)]}


keeps = StateGraph(State).add_node(stores).add_edge(START, "stores").compile()


def connects(state: State) -> dict:
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    except ConnectionRefusedError as error:
        return {"notes": [str(error)]}
    return {}


dials = StateGraph(State).add_node(connects).add_edge(START, "connects").compile()


def streams(state: State) -> dict:
    chunks = list(model.stream(state["messages"]))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return {"messages": [AIMessage(whole.content, tool_calls=whole.tool_calls)]}


streaming = StateGraph(State).add_node(streams).add_edge(START, "streams").compile()


def fails(state: State) -> dict:
    raise ValueError("broken")


failing = StateGraph(State).add_node(think).add_node(fails).add_edge(START, "think").add_edge("think", "fails").compile()


async def merged(chunks: Any) -> AIMessage:
    whole = None
    async for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
    return AIMessage(whole.content, tool_calls=whole.tool_calls)


async def last_of(events: Any) -> AIMessage:
    return [event["data"]["output"] async for event in events if event["event"] == "on_chat_model_end"][-1]


cached = Scripted(cache=InMemoryCache())


async def calls(state: State) -> dict:
    """Call the model in the way that the note names."""
    messages = state["messages"]
    match state["notes"][0]:
        case "invoke":
            answer: Any = model.invoke(messages)
        case "batch":
            [answer] = model.batch([messages])
        case "abatch":
            [answer] = await model.abatch([messages])
        case "generate":
            answer = model.generate([messages]).generations[0][0].message
        case "retry":
            answer = await model.with_retry().ainvoke(messages)
        case "fallbacks":
            answer = await model.with_fallbacks([Scripted()]).ainvoke(messages)
        case "bound":
            answer = await model.bind(tools=[{"name": "count"}], stop=["end"]).ainvoke(messages)
        case "cached":
            answer = await cached.ainvoke(messages)
        case "stream":
            answer = await merged(model.astream(messages))
        case "events":
            answer = await last_of(model.astream_events(messages, version="v2"))
        case _:
            chain = RunnableLambda(lambda given: given) | model
            answer = await chain.ainvoke(messages)
    return {"messages": [answer]}


calling = StateGraph(State).add_node(calls).add_edge(START, "calls").compile()


def score(inputs: Any, reference_output: Any, output: Any, run: Any) -> Any:
    match inputs:
        case {"raises": text}:
            raise RuntimeError(text)
        case {"returns": value}:
            return value
        case "never":
            time.sleep(3600)
    return {"length": len(output), "same": reference_output == output, "steps": run["steps"]}


async def score_async(inputs: Any, reference_output: Any, output: Any, run: Any) -> dict:
    return {"score": 0.5}


def score_of_two(inputs: Any, output: Any) -> dict:
    return {}
