"""The routes of the app that `tests.support.app_web` plays."""

from __future__ import annotations

FLOOD = 800  # messages of 16 KiB: more than sockets buffer
ROUTES = (
    "GET /seen", "GET /hello", "POST /echo", "POST /early", "GET /gone", "GET /gone/seen", "POST /gone", "GET /short", "GET /dies",
    "GET /split", "WEBSOCKET /ws/{kind}",
)  # fmt: skip
