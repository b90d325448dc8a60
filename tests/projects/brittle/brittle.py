"""User code beside a graph that takes its time, so that something can break meanwhile."""

import asyncio
import os
from typing import TypedDict

from langgraph.graph import StateGraph
from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route


class State(TypedDict, total=False):
    text: str


async def say(state: State) -> State:
    return {"text": state.get("text", "") + "!"}


echo = StateGraph(State).add_node("say", say).add_edge("__start__", "say").compile()
auth = Auth()


@auth.authenticate
async def authenticate(headers: dict[bytes, bytes]) -> str:
    """Whoever asks; it takes as many seconds as they like."""
    await asyncio.sleep(float(headers.get(b"x-seconds", b"0")))
    return "somebody"


async def numbers(request) -> StreamingResponse:
    async def endless():
        number = 0
        while True:
            yield f"{number}\n"
            number += 1
            await asyncio.sleep(0.05)

    return StreamingResponse(endless(), media_type="text/plain")


async def pid(request) -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


app = Starlette(routes=[Route("/numbers", numbers), Route("/pid", pid)])
