"""Check of `runyard doctor` for the provider that people sign in with."""

from __future__ import annotations

from collections.abc import Iterator

from cli.doctor.findings import Finding, fails, ok
from shared.errors import OutsideFailed
from shared.infra import egress
from shared.settings import Settings

NAME = "sign-in"
ADVICE = "See docs/operating/sign-in.md. A provider in a private network needs RUNYARD_ALLOWED_ADDRESSES."


def check(settings: Settings) -> Iterator[Finding]:
    """Fetch the metadata and the keys of the provider. Yields nothing if sign-in is not configured."""
    if settings.oidc_issuer is None:
        return
    from shared.oauth import openid  # imported here: it loads packages of the extra `server`

    egress.configure(settings.allowed_addresses, allow_http=settings.allow_http)
    try:
        provider = openid.probe(settings.oidc_issuer)
    except OutsideFailed as error:
        yield fails(NAME, f"{settings.oidc_issuer}: {error.message}", ADVICE)
    else:
        yield ok(NAME, f"{provider.issuer} answers and signs with {', '.join(provider.algorithms)}")
