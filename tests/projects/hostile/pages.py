"""Pages, scripts and an API document that try to read the console's key, or to act with it.

Everything an attack gets is written to the browser's console, after the word LOOT.
"""

import asyncio
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

FOLDER = Path(__file__).parent
ATTACK = FOLDER / "attack.js"
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script href="attack.js"/></svg>'
OF_ORIGIN = {
    "Service-Worker-Allowed": "/",
    "Clear-Site-Data": '"storage"',
    "Set-Login": "logged-out",
    "Set-Cookie": "tenant=1; Path=/",
}
LOOT = b"<script>console.log('LOOT response', sessionStorage['runyard.key'])</script>"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b" % (len(LOOT), LOOT)
DESCRIPTION = """
Hostile, as **Markdown**.

<iframe srcdoc="<script src=attack.js></script>"></iframe>
<iframe srcdoc="<script type=module src=static/rapidoc-min.js></script>"></iframe>
<iframe srcdoc="<script>console.log('LOOT inline', sessionStorage['runyard.key'])</script>"></iframe>
<iframe src="page"></iframe>
<iframe src="javascript:console.log('LOOT frame', parent.sessionStorage['runyard.key'])"></iframe>
<object data="picture.svg"></object>
<embed src="page">
<img src="x:" onerror="console.log('LOOT handler', sessionStorage['runyard.key'])">
<svg><script href="attack.js"></script><animate onbegin="console.log('LOOT animate')" attributeName="x" dur="1s"></animate></svg>
<link rel="stylesheet" href="leak.css">
<style>@import url(leak.css); rapi-doc, input { background: url(leak.png) }</style>
<base href="https://elsewhere.example/">
<rapi-doc spec-url="other.json"></rapi-doc>
<form action="page"><button>Sign in</button></form>
<a href="javascript:console.log('LOOT link', sessionStorage['runyard.key'])">A link that runs</a>
"""


def file(path: Path, kind: str):
    return lambda request: FileResponse(path, media_type=kind, headers=OF_ORIGIN)


async def page(request: Request) -> HTMLResponse:
    return HTMLResponse(
        '<!doctype html><title>Mine</title><script src="attack.js"></script>', headers=OF_ORIGIN
    )


async def picture(request: Request) -> Response:
    return Response(SVG, media_type="image/svg+xml")


async def leak(request: Request) -> Response:
    return Response("body { color: red }", media_type="text/css")


class Reset:
    """A 205 whose body comes once `/release` is called: the whole of a page, head and all."""

    def __init__(self) -> None:
        self.is_released = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % len(RESPONSE))]
        await send({"type": "http.response.start", "status": 205, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await self.is_released.wait()
        await send({"type": "http.response.body", "body": RESPONSE})

    async def release(self, request: Request) -> Response:
        self.is_released.set()
        return Response(status_code=204)


async def redirect_to_key(request: Request) -> RedirectResponse:
    return RedirectResponse(f"/v2/keys/{request.path_params['thread_id']}", 307)


reset = Reset()
app = Starlette(
    routes=[
        Route("/page", page),
        Route("/picture.svg", picture),
        Route("/attack.js", file(ATTACK, "text/javascript")),
        Route("/static/{name:path}", file(ATTACK, "text/javascript")),
        Route("/o/static/{name:path}", file(ATTACK, "text/javascript")),
        Route("/docs/{name:path}", file(ATTACK, "text/javascript")),
        Route("/sw.js", file(FOLDER / "sw.js", "text/javascript")),
        Route("/leak.css", leak),
        Route("/leak.png", leak),
        Route("/reset", reset),
        Route("/release", reset.release, methods=["POST"]),
        Route("/threads/{thread_id}", redirect_to_key, methods=["DELETE"]),
    ]
)
app.openapi_url = "/openapi.json"
app.openapi = lambda: {
    "openapi": "3.1.0",
    "info": {
        "title": "Hostile</script><script src=attack.js></script>",
        "version": "1",
        "description": DESCRIPTION,
    },
    "paths": {"/page": {"get": {"summary": "A page", "description": DESCRIPTION, "responses": {}}}},
}
