"""A graph that calls models and tools in each way that a trace must show. `calls.ts` is its twin in TypeScript."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.language_models import BaseChatModel, FakeListLLM
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import ToolException, tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt


class State(TypedDict, total=False):
    how: str


USAGE = {
    "input_tokens": 5,
    "output_tokens": 7,
    "total_tokens": 12,
    "input_token_details": {"cache_read": 2, "cache_creation": 1},
    "output_token_details": {"reasoning": 3},
}
DESCRIBED = {"model_name": "model-1-0613", "id": "response-1", "finish_reason": "stop"}


class Model(BaseChatModel):
    model: str = "model-1"
    temperature: float = 0.5
    fails: bool = False
    waits: bool = False

    @property
    def _llm_type(self) -> str:
        return "model"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "top_p": 0.9, "api_key": "not shown"}

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.fails:
            raise ValueError("no answer")
        calls = [{"name": "look", "args": {"word": "sea"}, "id": "call-1"}] if stop else []
        answer = AIMessage("It is water.", tool_calls=calls, usage_metadata=USAGE, response_metadata=DESCRIBED)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.waits:
            get_stream_writer()("waiting")
            await asyncio.sleep(60)
        return self._generate(messages, stop)

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        for text in ("It is ", "water."):
            chunk = ChatGenerationChunk(message=AIMessageChunk(text))
            if run_manager:
                run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk
        yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=USAGE, response_metadata=DESCRIBED))


@tool
async def look(word: str) -> str:
    """Look a word up, by a chain of runnables and by a call with callbacks of its own."""
    await (RunnableLambda(lambda text: text) | Model()).ainvoke(word)
    await Model().ainvoke(word, config={"callbacks": []})
    return f"{word} means something"


@tool
async def fail(word: str) -> str:
    """Fail."""
    raise ValueError("no such word")


@tool
async def refuse(word: str) -> str:
    """Refuse, in a way that a model may read."""
    raise ToolException("not this word")


refuse.handle_tool_error = True


@tool
async def ask(word: str) -> str:
    """Ask a person."""
    return interrupt("which?")


def called(name: str) -> dict[str, Any]:
    return {"type": "tool_call", "name": name, "id": "call-1", "args": {"word": "sea"}}


def conversation() -> list[Any]:
    return [
        SystemMessage("Be brief."),
        *(HumanMessage(f"Question {number}: {'x' * 6_000}") for number in range(9)),
        HumanMessage(f"What is the sea? {os.environ.get('TOKEN')}"),
    ]


async def die_once() -> None:
    """Kill the host, but not in the second attempt of the run."""
    mark = Path.home() / "died"
    if not mark.exists():
        mark.touch()
        await asyncio.sleep(0.2)  # until the runner has read what the host has sent
        os.kill(os.getpid(), signal.SIGKILL)


async def act(state: State) -> State:
    match state["how"]:
        case "asks":
            await asyncio.to_thread(Model().invoke, conversation(), stop=["END"])
        case "completes":
            await FakeListLLM(responses=["sea"]).ainvoke("water?")
        case "beside":
            await asyncio.gather(*(Model().ainvoke("?") for _ in range(3)))
        case "streams":
            async for _ in Model().astream("?"):
                pass
        case "fails":
            Model(fails=True).invoke("?")
        case "waits":
            await Model(waits=True).ainvoke("?")
        case "many":
            for _ in range(1_020):
                Model().invoke("?")
        case "dies":
            Model().invoke("?")
            await die_once()
        case "tool":
            await look.ainvoke(called("look"))
        case "tool fails":
            await fail.ainvoke(called("fail"))
        case "tool refuses":
            await refuse.ainvoke(called("refuse"))
        case "tool asks":
            await ask.ainvoke(called("ask"))
    return {}


calls = StateGraph(State).add_node(act).add_edge(START, "act").compile()
below = StateGraph(State).add_node("inner", calls).add_edge(START, "inner").compile()
