"""A run that needs its user's consent: it interrupts, the user consents, and the run resumes with the token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.oauth_server import OAuthServer, oauth_server
from tests.support.stack import Stack

PROJECT = Path(__file__).parents[1] / "projects" / "concierge"


@pytest.fixture
def server() -> Iterator[OAuthServer]:
    with oauth_server() as running:
        yield running


def project(stack: Stack, folder: Path) -> Path:
    """Copy the project and add the service's address and key to its variables."""
    shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
    config = json.loads((PROJECT / "langgraph.json").read_text())
    config["env"] = {"SERVICE_URL": stack.url, "SERVICE_KEY": stack.api_key}
    (folder / "langgraph.json").write_text(json.dumps(config))
    return folder


def test_a_run_waits_for_its_users_consent_and_goes_on_with_the_token(
    stack: Stack, server: OAuthServer, tmp_path: Path
) -> None:
    server.client("client_secret_post", f"{stack.url}/v2/auth/callback/globex")
    made = stack.client.post("/v2/auth/providers", json=server.provider(provider_id="globex", uses_pkce=True))
    assert made.status_code == 200, made.text
    sdk = stack.sdk(stack.deploy(project(stack, tmp_path), "concierge"))
    thread = sdk.threads.create()["thread_id"]

    sdk.runs.wait(thread, "agent", input={"user": "oda"})
    [asked] = sdk.threads.get(thread)["interrupts"].values()
    value: Any = asked[0]["value"]
    assert (value["provider"], value["scopes"]) == ("globex", ["read"])
    assert value["message"] == "OAuth authentication required for provider 'globex'."
    page = httpx.get(server.consent(value["auth_url"]))
    assert page.status_code == 200
    ended: Any = sdk.runs.wait(thread, "agent", command={"resume": True})

    assert ended["token"] == server.tokens[0].access_token
    tokens = stack.client.get("/v2/auth/tokens").json()
    [row] = [token for token in tokens if token["provider_id"] == "globex"]
    assistants = sdk.assistants.search(graph_id="agent")
    assert (row["user_id"], row["agent_id"]) == ("oda", assistants[0]["assistant_id"])
