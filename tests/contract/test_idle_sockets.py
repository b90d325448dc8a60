"""What a WebSocket costs the web process while nothing happens on its thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

import tests.support.factories as make
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from tests.contract.conftest import Api
from tests.support.protocol import ALL
from tests.support.sockets import TEXT, Raw, message
from tests.support.web_process import KEY
from tests.support.web_process import started as web_process

MOST_BYTES = 30_000  # of one socket
SOCKETS = 300
WARMING = 50  # what is made once is made by then


@pytest.fixture
def served(database: str, redis_url: str, tmp_path: Path) -> Iterator[tuple[psutil.Process, str]]:
    app = "tests.support.quiet_web:app"
    with web_process(database, tmp_path, app=app, REDIS_URL=redis_url) as (arbiter, base):
        (worker,) = psutil.Process(arbiter.pid).children()
        yield worker, base


def test_an_idle_socket_takes_no_more_than_so_much(served: tuple[psutil.Process, str], api: Api) -> None:
    worker, base = served
    deployment = make.deployment(organization_id=DEFAULT_ORGANIZATION_ID, name=f"chat-{uuid4().hex[:8]}")
    with ExitStack() as held:

        def subscribe(count: int) -> None:
            for _ in range(count):
                raw = held.enter_context(Raw(base, deployment.name, str(make.thread(deployment.id)), KEY))
                raw.send(TEXT, message(1, "subscription.subscribe", channels=list(ALL)))
                assert raw.answer()["type"] == "success"

        subscribe(WARMING)
        before = worker.memory_info().rss
        subscribe(SOCKETS)
        assert (worker.memory_info().rss - before) / SOCKETS <= MOST_BYTES
