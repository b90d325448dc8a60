"""Pages, scripts and an API document that try to read the console's key, or to act with it.

Everything an attack gets is written to the browser's console, after the word LOOT.
"""

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

FOLDER = Path(__file__).parent
ATTACK = FOLDER / "attack.js"
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script href="attack.js"/></svg>'
OF_ORIGIN = {
    "Service-Worker-Allowed": "/",
    "Clear-Site-Data": '"storage"',
    "Set-Login": "logged-out",
    "Set-Cookie": "tenant=1; Path=/",
}
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


async def redirect_to_key(request: Request) -> RedirectResponse:
    return RedirectResponse(f"/v2/keys/{request.path_params['thread_id']}", 307)


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
