"""Idle connections are closed to make room, longest idle first; a connection with a request is never closed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.event import Event

from web.http.connections import Connections

Serve = Callable[[Event], gevent.Greenlet]


@pytest.fixture
def connections() -> Connections:
    return Connections(10, per_source=10, unbounded=())


@pytest.fixture
def answered() -> list[str]:
    return []


@pytest.fixture
def serve(connections: Connections, answered: list[str]) -> Iterator[Serve]:
    """Open a connection that waits for its request and then takes a moment to answer it."""

    def run(request: Event) -> None:
        with connections.open(client, "192.0.2.1"):
            with connections.waiting(30):
                request.wait()
            gevent.sleep(0.01)
            if request.is_set():
                answered.append("yes")

    def start(request: Event) -> gevent.Greenlet:
        greenlet = gevent.spawn(run, request)
        gevent.sleep(0)
        return greenlet

    with socket.socket() as client:
        yield start


def test_one_that_waits_is_closed(connections: Connections, serve: Serve, answered: list[str]) -> None:
    connection = serve(Event())
    connections.close_waiting()
    connection.join(10)
    assert connection.successful()
    assert answered == []


def test_one_whose_request_comes_just_then_is_served(
    connections: Connections, serve: Serve, answered: list[str]
) -> None:
    request = Event()
    connection = serve(request)
    request.set()
    connections.close_waiting()
    connection.join(10)
    assert connection.successful()
    assert answered == ["yes"]
