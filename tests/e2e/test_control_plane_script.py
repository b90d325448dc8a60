"""The calls of the script in the public control-plane tutorial, over plain HTTP.

The script creates a deployment, takes the first revision of the list as the latest and polls it until it ends. It then
sends a PATCH with unchanged values, polls again, and deletes the deployment. The tutorial deploys a repository; this
test deploys an archive and therefore has an additional upload.
"""

from __future__ import annotations

import time
from typing import Any

import httpx

from tests.e2e.test_revisions import archive, project
from tests.support.stack import Stack

WAIT_SECONDS = 120
PAUSE_SECONDS = 0.1  # a minute in the tutorial


def wait_for_deployment(client: httpx.Client, deployment_id: str, revision_id: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        answer = client.get(f"/v2/deployments/{deployment_id}/revisions/{revision_id}")
        assert answer.status_code == 200
        status = answer.json()["status"]
        assert "FAILED" not in status
        if status == "DEPLOYED":
            return
        time.sleep(PAUSE_SECONDS)
    raise AssertionError(f"revision {revision_id} was not deployed within {WAIT_SECONDS} s")


def latest_revision(client: httpx.Client, deployment_id: str) -> Any:
    answer = client.get(f"/v2/deployments/{deployment_id}/revisions")
    assert answer.status_code == 200
    return answer.json()["resources"][0]


def test_the_tutorials_script_runs(stack: Stack) -> None:
    client = stack.client
    body = {
        "name": "my_deployment",
        "source": "internal_source",
        "source_config": {
            "integration_id": None,
            "repo_url": None,
            "deployment_type": "serverless",
            "build_on_push": False,
            "custom_url": None,
            "resource_spec": None,
        },
        "source_revision_config": {
            "repo_ref": None,
            "langgraph_config_path": "langgraph.json",
            "image_uri": None,
        },
        "secrets": [{"name": name, "value": f"a value of {name}"} for name in ("ONE", "TWO", "THREE")],
    }
    created = client.post("/v2/deployments", json=body)
    assert created.status_code == 201
    deployment: Any = created.json()
    address = f"/v2/deployments/{deployment['id']}"
    assert client.get(address).status_code == 200
    first = latest_revision(client, deployment["id"])
    assert first["id"] == deployment["latest_revision_id"]

    place = client.post(f"{address}/upload-url", json={"supports_upload_headers": True}).json()
    files = archive(project("__import__('os').environ['TWO']"))
    assert httpx.put(place["upload_url"], content=files, headers=place["upload_headers"]).is_success
    config = {"langgraph_config_path": "langgraph.json", "source_tarball_path": place["object_path"]}
    assert client.patch(address, json={"source_revision_config": config}).status_code == 200
    wait_for_deployment(client, deployment["id"], first["id"])
    assert latest_revision(client, deployment["id"])["id"] == first["id"]

    change = {
        "source_config": {"build_on_push": True},
        "source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"},
    }
    patched = client.patch(address, json=change)
    assert patched.status_code == 200
    second = latest_revision(client, deployment["id"])
    assert second["id"] == patched.json()["latest_revision_id"] != first["id"]
    wait_for_deployment(client, deployment["id"], second["id"])
    result: Any = stack.sdk("my_deployment").runs.wait(None, "agent", input={})
    assert result["said"] == "a value of TWO"

    assert client.delete(address).status_code == 204
