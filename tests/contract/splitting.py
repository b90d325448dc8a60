"""A deployment with a second revision, and its owner's changes of traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

import tests.support.factories as make
from tests.contract.conftest import Api, ControlPlane
from web.gate.deployments import forget as forget_deployments

THREADS = [str(uuid4()) for _ in range(60)]


@pytest.fixture
def newer(api: Api) -> str:
    """Revision 2 of the deployment `chat`, built but not serving."""
    return str(make.revision(api.deployment.id, number=2, graphs=("agent", "other", "third")))


@pytest.fixture
def operator(api: Api, control: ControlPlane) -> ControlPlane:
    """Control plane for the owner of `chat`."""
    return control


def split(operator: ControlPlane, api: Api, *parts: tuple[Any, int]) -> Any:
    body = {"traffic": [{"revision_id": str(id), "percent": percent} for id, percent in parts]}
    forget_deployments()
    return operator.call("PATCH", f"/v2/deployments/{api.deployment.id}", body)


def act(operator: ControlPlane, api: Api, what: str, **body: Any) -> Any:
    return operator.post(f"/v2/deployments/{api.deployment.id}/traffic/{what}", body)


def on_thread(api: Api, thread_id: str, address: str | None = None, assistant: str = "agent") -> str:
    """Create a run on a thread with this id. Returns the run's revision id."""
    client = Api(api.client, replace(api.deployment, name=address or api.deployment.name))
    body = {"assistant_id": assistant, "if_not_exists": "create"}
    response = client.post(f"/threads/{thread_id}/runs", body)
    assert response.status_code == 200, response.text
    return response.json["revision_id"]
