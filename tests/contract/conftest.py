"""The web app on an embedded database, called through Flask's client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from shared import api_keys
from shared.database import transaction
from shared.settings import Settings
from web.app import create_app

ADMIN_KEY = "an-operator-key-for-tests"


@pytest.fixture
def app(db: Any, settings: Settings) -> Flask:
    """The whole web app; its organization is the default one."""
    api_keys.forget()
    with transaction() as session:
        api_keys.ensure_default_organization(session)
    return create_app(replace(settings, api_key=ADMIN_KEY))


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """A caller with the operator's key."""
    return caller(app, ADMIN_KEY)


@pytest.fixture
def anonymous(app: Flask) -> FlaskClient:
    """A caller without a key."""
    return app.test_client()


def caller(app: Flask, key: str) -> FlaskClient:
    """A client that sends this key with every request."""
    client = app.test_client()
    client.environ_base["HTTP_X_API_KEY"] = key
    return client
