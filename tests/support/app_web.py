"""The web app with a played app behind it, for gunicorn: `tests.support.app_web:app`."""

from __future__ import annotations

from web.wsgi import app  # isort: skip  it patches gevent before all else

from dataclasses import replace

import orjson

from shared.hosts import exchanges
from tests.support.app_routes import FLOOD
from tests.support.played_app import BODY, BYTES, CLOSE, END, HEAD, Died, Side, Stage
from web.gate import limits

app.config["SETTINGS"] = replace(app.config["SETTINGS"], heartbeat_seconds=0.1, streams_per_key=6)
limits.start(app)


def play(side: Side) -> None:
    path = side.head["path"]
    if side.head["type"] == "websocket":
        play_socket(side, path.removeprefix("/ws/"))
    elif path == "/gone/seen":
        side.answer(orjson.dumps([other.closed is not None for other in gone]))
    elif path == "/gone":
        gone.append(side)
        side.begin()
        side.send(BODY, b"begun")
        while side.receive()[0] != CLOSE:
            pass
    else:
        PLAYED[path](side)


def play_socket(side: Side, kind: str) -> None:
    if kind == "refused":
        side.send(CLOSE, b'{"code": 1000, "reason": ""}')
        return
    if kind == "denied":
        side.answer(b"go away", 418, [("x-why", "tea")])
        return
    side.accept("two" if kind == "echo" and side.head["subprotocols"] else None, [("x-app", "yes")])
    if kind == "dies":
        raise Died
    if kind == "raises":
        raise ValueError("secret")
    if kind == "flood":
        for _ in range(FLOOD):
            side.send(BYTES, bytes(16 * 1024))
    if kind == "closes":
        side.send(CLOSE, b'{"code": 4321, "reason": "enough"}')
        return
    while True:
        what, data = side.receive()
        if what == CLOSE:
            closings.append(side.closed)
            return
        if data == b"how did others close":
            data = orjson.dumps(closings)
        side.send(what, data)


def echo(side: Side) -> None:
    side.begin()
    while (part := side.receive())[0] == BODY:
        side.send(BODY, part[1])
    side.send(END)


def dies(side: Side) -> None:
    raise Died


def split(side: Side) -> None:
    head = {"status": 200, "headers": [["x", "a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"]]}
    side.send(HEAD, orjson.dumps(head))
    side.send(END)


gone: list[Side] = []
closings: list[object] = []
PLAYED = {
    "/seen": lambda side: side.answer(orjson.dumps(dict(side.head))),
    "/hello": lambda side: side.answer(b"hello"),
    "/echo": echo,
    "/early": lambda side: side.answer(b"early"),
    "/short": lambda side: side.answer(b"hello", headers=[("content-length", "9")]),
    "/dies": dies,
    "/split": split,
}
exchanges.open_exchange = Stage(play).open_exchange
