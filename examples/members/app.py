"""The deployment's own web page and its sign-in route. These routes are public: each checks what it needs."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route
from users import NAMES, sign_in

FOLDER = Path(__file__).parent / "page"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}


def file(name: str) -> Route:
    """A route that serves one file of the page."""
    path = "/" if name == "index.html" else f"/{name}"
    return Route(path, lambda request: FileResponse(FOLDER / name, headers=HEADERS))


async def login(request: Request) -> JSONResponse:
    sent = await request.json()
    name, password = (str(sent.get(field, "")) for field in ("name", "password"))
    token = sign_in(name, password)
    if token is None:
        return JSONResponse({"detail": "Name or password are wrong."}, 401)
    return JSONResponse({"token": token, "name": NAMES[name]}, headers={"Cache-Control": "no-store"})


app = Starlette(
    routes=[
        file("index.html"),
        file("page.js"),
        file("page.css"),
        Route("/login", login, methods=["POST"]),
    ]
)
