"""Sign-in with an OpenID Connect provider, in a browser that also opens the pages of a hostile project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import console
from tests.support.oauth_server import SECRET, OAuthServer, oauth_server
from tests.support.stack import Stack

HOSTILE = Path(__file__).parents[2] / "projects" / "hostile"


@pytest.fixture(scope="module")
def provider() -> Iterator[OAuthServer]:
    with oauth_server() as server:
        yield server


@pytest.fixture(scope="module")
def signing(provider: OAuthServer) -> Iterator[tuple[Stack, str]]:
    """A platform whose people sign in at the provider, and the name of the hostile deployment."""
    settings = {
        "RUNYARD_OIDC_ISSUER": provider.url,
        "RUNYARD_OIDC_CLIENT_ID": "runyard",
        "RUNYARD_OIDC_CLIENT_SECRET": SECRET,
        "RUNYARD_OIDC_LABEL": "Acme",
        "RUNYARD_OIDC_ROLES": "staff=run,platform=admin",
        "RUNYARD_ALLOWED_ADDRESSES": "127.0.0.1",
        "RUNYARD_ALLOW_HTTP": "true",
    }
    with Stack(env=settings) as stack:
        provider.openid(f"{stack.url}/v2/sign-in/callback")
        yield stack, stack.deploy(HOSTILE, name="hostile")


@pytest.mark.parametrize("row", console.rows("sign_in"))
def test_sign_in(signing: tuple[Stack, str], row: str) -> None:
    stack, hostile = signing
    console.check("sign_in", row, stack, hostile=hostile)
