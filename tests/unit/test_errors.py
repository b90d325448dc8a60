"""Every domain error has an HTTP status, and a body in the format of the requested interface."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
from flask import Flask

from shared import errors as domain
from shared.errors import Conflict, Invalid, NotFound, RunyardError, TooMany, Unavailable
from web.http import errors
from web.http.responses import Orjson
from web.schemas.validation import SchemaViolation, Violation

CLASSES = [kind for _, kind in inspect.getmembers(domain, inspect.isclass) if issubclass(kind, RunyardError)]


@pytest.fixture
def raising() -> Any:
    """Return a function that requests a path whose route raises the given error, and returns the response."""

    def call(error: Exception, path: str = "/v2/things") -> Any:
        app = Flask("test")
        app.json = Orjson(app)
        errors.register(app)

        def view() -> None:
            raise error

        app.add_url_rule(path, view_func=view)
        return app.test_client().get(path)

    return call


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_mapped(kind: type[RunyardError]) -> None:
    assert kind in errors.STATUSES


def test_an_error_is_its_detail_with_the_status_of_its_class(raising: Any) -> None:
    response = raising(Conflict("Thread 1 already exists"))
    assert (response.status_code, response.json) == (409, {"detail": "Thread 1 already exists"})
    assert raising(NotFound()).json == {"detail": "Not Found"}
    response = raising(Invalid("Only one of them", status=400))
    assert (response.status_code, response.json) == (400, {"detail": "Only one of them"})

    class Gone(NotFound):
        """It is gone."""

    assert raising(Gone()).status_code == 404


def test_the_control_plane_lists_what_is_invalid_and_the_deployment_api_says_it_in_one_string(
    raising: Any,
) -> None:
    response = raising(Invalid("must be a UUID", loc=("path", "deployment_id"), kind="uuid_parsing"))
    assert response.status_code == 422
    assert response.json == {
        "detail": [{"loc": ["path", "deployment_id"], "msg": "must be a UUID", "type": "uuid_parsing"}]
    }

    violations = [
        Violation(("body", "limit"), "must be an integer", "int_type"),
        Violation(("body", "ids", 2), "must be a UUID", "uuid_parsing"),
    ]
    response = raising(SchemaViolation(violations), "/d/chat/threads/search")
    assert response.status_code == 422
    assert response.json == {"detail": "limit: must be an integer; ids.2: must be a UUID"}


def test_a_reached_limit_and_a_missing_database_say_when_to_come_back(raising: Any) -> None:
    response = raising(TooMany("too many runs", retry_after_seconds=7))
    assert (response.status_code, response.headers["Retry-After"]) == (429, "7")
    response = raising(Unavailable("The database is unavailable."))
    assert (response.status_code, response.headers["Retry-After"]) == (503, "2")
    assert response.json == {"detail": "The database is unavailable."}


@pytest.mark.parametrize("error", [ZeroDivisionError("the secret is 42"), RunyardError("the secret is 42")])
def test_a_bug_shows_the_caller_nothing_and_the_log_everything(
    raising: Any, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="web.http.errors"):
        response = raising(error)
    assert response.status_code == 500
    assert response.json["detail"] == "internal error"
    assert "secret" not in response.text
    assert "the secret is 42" in caplog.text
