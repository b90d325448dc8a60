"""User code beside a graph that takes its time, so that something can break meanwhile."""

import asyncio
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import StateGraph
from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute


class State(TypedDict, total=False):
    text: str


async def say(state: State) -> State:
    return {"text": state.get("text", "") + "!"}


echo = StateGraph(State).add_node("say", say).add_edge("__start__", "say").compile()
auth = Auth()


async def ponders(config: dict) -> Any:
    """A graph whose threads are slow to read and to update. It notes each time in a file."""
    if "thread_id" in config["configurable"]:
        with (Path.home() / "pondered").open("a") as notes:
            notes.write("x")
        await asyncio.sleep(4)
    return echo


@auth.authenticate
async def authenticate(headers: dict[bytes, bytes]) -> str:
    """Whoever asks; it takes as many seconds as they like."""
    await asyncio.sleep(float(headers.get(b"x-seconds", b"0")))
    return "somebody"


async def numbers(request) -> StreamingResponse:
    async def slowly():
        for number in range(int(request.query_params["count"])):
            yield f"{number}\n"
            await asyncio.sleep(0.1)

    return StreamingResponse(slowly(), media_type="text/plain")


async def hello(request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def upload(request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def listen(websocket) -> None:
    """Accept a connection and keep it open."""
    await websocket.accept()
    await websocket.send_text("listening")
    await websocket.receive()


app = Starlette(
    routes=[
        Route("/numbers", numbers),
        Route("/hello", hello),
        Route("/upload", upload, methods=["POST"]),
        WebSocketRoute("/listen", listen),
    ]
)
