"""Routes of the project's own: one for each thing that an app can do."""

import asyncio
import hashlib
import os
from contextlib import asynccontextmanager

import lobby
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute


@asynccontextmanager
async def lifespan(app):
    lobby.opened.append("doors")
    app.state.greeting = "Good day"
    yield
    lobby.opened.clear()


async def hello(request: Request) -> JSONResponse:
    user = request.scope.get("user")
    return JSONResponse(
        {
            "greeting": request.app.state.greeting,
            "name": request.path_params.get("name"),
            "user": None if user is None else user.identity,
            "root_path": request.scope["root_path"],
            "query": request.query_params.multi_items(),
            "keys": sorted(set(os.environ) & {"DATABASE_URL", "REDIS_URL", "RUNYARD_API_KEY"}),
            "key_seen": "x-api-key" in request.headers,
        },
        headers={"x-desk": "front"},
    )


async def steps(request: Request) -> StreamingResponse:
    async def lines():
        try:
            for number in range(int(request.query_params.get("count", 5))):
                yield f"{number}\n"
                await asyncio.sleep(0.1)
        finally:
            lobby.events.append("steps ended")

    return StreamingResponse(lines(), media_type="text/plain")


async def upload(request: Request) -> JSONResponse:
    found, size = hashlib.sha256(), 0
    async for part in request.stream():
        found.update(part)
        size += len(part)
    return JSONResponse({"bytes": size, "sha256": found.hexdigest()})


async def fails(request: Request) -> JSONResponse:
    raise ValueError("the safe's number is 1234")


async def queue(request: Request) -> JSONResponse:
    return JSONResponse({"covered": True})


async def moved(request: Request) -> RedirectResponse:
    response = RedirectResponse("/hello", 307)
    response.set_cookie("seen", "yes", path="/")
    return response


async def seen(request: Request) -> JSONResponse:
    return JSONResponse(lobby.events)


async def parrot(websocket) -> None:
    await websocket.accept()
    user = websocket.scope.get("user")
    await websocket.send_json({"user": None if user is None else user.identity})
    async for text in websocket.iter_text():
        if text == "leave":
            await websocket.close(4321, "as you wish")
            return
        await websocket.send_text(text.upper())
    lobby.events.append("parrot left")


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/hello", hello),
        Route("/hello/{name}", hello),
        Route("/steps", steps),
        Route("/upload", upload, methods=["POST", "PUT"]),
        Route("/fails", fails),
        Route("/moved", moved),
        Route("/seen", seen),
        Route("/queue", queue),  # a built-in path
        WebSocketRoute("/parrot", parrot),
        Mount("/files", routes=[Route("/{name:path}", lambda request: PlainTextResponse(request.path_params["name"]))]),
    ],
)
