"""Every method of the public `langchain-auth` client, unmodified, against this service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from langchain_auth import AuthStatus, Client, OAuthProvider

from tests.contract.conftest import ADMIN_KEY, ControlPlane
from tests.support.oauth_server import SECRET, OAuthServer, oauth_server
from tests.support.outside import serving


@pytest.fixture
def server(lenient: None) -> Iterator[OAuthServer]:
    with oauth_server() as running:
        yield running


@pytest.fixture
def client(control: ControlPlane, server: OAuthServer) -> Iterator[Client]:
    """Public client of this service, which the OAuth server knows as `us`."""
    with serving(control.client.application) as port:
        url = f"http://127.0.0.1:{port}"
        server.client("client_secret_post", f"{url}/v2/auth/callback/acme")
        yield Client(api_key=ADMIN_KEY, api_url=url)


async def create(client: Client, server: OAuthServer) -> OAuthProvider:
    return await client.create_oauth_provider(
        "acme", "Acme", "us", SECRET, f"{server.url}/authorize", f"{server.url}/token", uses_pkce=True
    )


def test_it_keeps_providers(client: Client, server: OAuthServer) -> None:
    async def use() -> None:
        made = await create(client, server)
        assert (made.provider_id, made.uses_pkce, made.code_challenge_method) == ("acme", True, "S256")
        assert await client.get_oauth_provider("acme") == made
        changed = await client.update_oauth_provider("acme", name="New", code_challenge_method="plain")
        assert (changed.name, changed.code_challenge_method) == ("New", "plain")
        assert await client.list_oauth_providers() == [changed]
        assert "deleted" in (await client.delete_oauth_provider("acme")).message
        assert await client.list_oauth_providers() == []
        with pytest.raises(Exception, match="HTTP 404"):
            await client.get_oauth_provider("acme")

    asyncio.run(use())


def test_it_authenticates_a_user(client: Client, server: OAuthServer) -> None:
    async def use() -> None:
        await create(client, server)
        asked = await client.authenticate("acme", ["read"], user_id="ann", agent_id="agent")
        assert (asked.status, asked.token) == (AuthStatus.PENDING, None)
        assert not (await client.check_token_exists("acme")).has_token
        with pytest.raises(TimeoutError):
            await client.wait_for_completion(str(asked.auth_id), timeout=0)
        with pytest.raises(Exception, match="not found"):
            await client.wait_for_completion("0" * 32, timeout=0)

        waiting = asyncio.create_task(client.wait_for_completion(str(asked.auth_id), timeout=20))
        page = await asyncio.to_thread(lambda: httpx.get(server.consent(str(asked.url))))
        assert page.status_code == 200
        ended = await waiting
        assert (ended.status, ended.token) == (AuthStatus.COMPLETED, server.tokens[0].access_token)

        again = await client.authenticate("acme", ["read"], user_id="ann", agent_id="agent")
        assert (again.status, again.token) == (AuthStatus.COMPLETED, ended.token)
        assert (await client.check_token_exists("acme")).has_token
        revoked = await client.revoke_tokens("acme")
        assert (revoked.provider_id, revoked.message) == ("acme", "1 token revoked.")
        assert not (await client.check_token_exists("acme")).has_token

    asyncio.run(use())


def test_it_reports_consent_that_was_denied(client: Client, server: OAuthServer) -> None:
    async def use() -> None:
        await create(client, server)
        server.denies = True
        asked = await client.authenticate("acme", ["read"], user_id="ann")
        await asyncio.to_thread(lambda: httpx.get(server.consent(str(asked.url))))
        with pytest.raises(Exception, match="failed with status: failed"):
            await client.wait_for_completion(str(asked.auth_id), timeout=20)

    asyncio.run(use())
