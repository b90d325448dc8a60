"""OpenID Connect: discovery of the provider that people sign in with, and the checks of its ID tokens.

The authorization code flow with PKCE and a nonce. authlib builds the messages and checks the claims; all calls go
through shared/infra/egress.py. Only signatures by the provider's public keys count: `none` and the algorithms with a
shared secret are refused, whatever the metadata says.

Metadata and keys are cached. A token that none of the cached keys has signed, or with another algorithm, fetches both
again, since providers rotate them, but at most once within RETRY_SECONDS.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from authlib.common.urls import add_params_to_uri
from authlib.oidc.core import CodeIDToken
from cachetools import TTLCache
from joserfc import jwt
from joserfc.errors import (
    BadSignatureError,
    ClaimError,
    ExpiredTokenError,
    InvalidKeyIdError,
    JoseError,
    UnsupportedAlgorithmError,
)
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from shared.errors import AddressRefused, Invalid, OutsideFailed
from shared.infra import egress
from shared.oauth import token_endpoint
from shared.oauth.token_endpoint import OAuthClient, TokenRefused, Tokens
from shared.records import one_line
from shared.settings import Settings

log = logging.getLogger(__name__)

DOCUMENT = "/.well-known/openid-configuration"
# All with public keys
ALGORITHMS = frozenset("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA Ed25519".split())
DEFAULT_ALGORITHM = "RS256"
PKCE_METHOD = "S256"
CACHE_SECONDS = 300.0  # also the time for which a key that the provider has withdrawn counts
RETRY_SECONDS = 60.0
LEEWAY_SECONDS = 60  # difference of the clocks
MAX_SUBJECT, MAX_NAME = 255, 255


@dataclass(frozen=True, kw_only=True)
class Provider:
    """The metadata of an OpenID Connect provider."""

    issuer: str
    auth_url: str
    token_url: str
    keys_url: str
    userinfo_url: str | None
    logout_url: str | None
    auth_methods: tuple[str, ...]
    algorithms: tuple[str, ...]
    sends_issuer: bool  # its redirects name the issuer (RFC 9207)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A person, as the provider's ID token describes them."""

    issuer: str
    subject: str
    name: str  # for display
    claims: Mapping[str, Any] = field(repr=False)
    id_token: str = field(repr=False)


@dataclass(slots=True)
class _Keys:
    keys: KeySet
    fetched_at: float


_providers: TTLCache[str, Provider] = TTLCache(8, CACHE_SECONDS)
_keys: TTLCache[str, _Keys] = TTLCache(8, CACHE_SECONDS)


def forget() -> None:
    """Clear the caches of metadata and keys."""
    _providers.clear()
    _keys.clear()


def discover(issuer: str) -> Provider:
    """Return the metadata of a provider. Raises OutsideFailed if it gives none that can be used."""
    provider = _providers.get(issuer)
    if provider is None:
        provider = _providers[issuer] = _provider(issuer, _document(f"{issuer.rstrip('/')}{DOCUMENT}"))
    return provider


def probe(issuer: str) -> Provider:
    """Fetch the metadata and the keys of a provider anew. Raises OutsideFailed if they cannot be used."""
    forget()
    provider = discover(issuer)
    _fetch_keys(provider)
    return provider


def _provider(issuer: str, document: Mapping[str, Any]) -> Provider:
    if document.get("issuer") != issuer:
        raise OutsideFailed(f"The metadata of the provider names another issuer than {issuer}")
    methods = _texts(document.get("code_challenge_methods_supported"))
    if methods and PKCE_METHOD not in methods:
        raise OutsideFailed(f"The provider {issuer} does not support PKCE with {PKCE_METHOD}")
    algorithms = _texts(document.get("id_token_signing_alg_values_supported")) or (DEFAULT_ALGORITHM,)
    usable = tuple(name for name in algorithms if name in ALGORITHMS)
    if not usable:
        raise OutsideFailed(f"The provider {issuer} signs ID tokens with no supported algorithm")
    return Provider(
        issuer=issuer,
        auth_url=_endpoint(document, "authorization_endpoint", is_for_browser=True),
        token_url=_endpoint(document, "token_endpoint"),
        keys_url=_endpoint(document, "jwks_uri"),
        userinfo_url=_endpoint(document, "userinfo_endpoint") if document.get("userinfo_endpoint") else None,
        logout_url=_endpoint(document, "end_session_endpoint", is_for_browser=True)
        if document.get("end_session_endpoint")
        else None,
        auth_methods=_texts(document.get("token_endpoint_auth_methods_supported"))
        or ("client_secret_basic",),
        algorithms=usable,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _endpoint(document: Mapping[str, Any], name: str, *, is_for_browser: bool = False) -> str:
    url = document.get(name)
    if not isinstance(url, str):
        raise OutsideFailed(f"The metadata of the provider has no {name}")
    try:
        (egress.check_browser_url if is_for_browser else egress.check_url)(url)
    except AddressRefused as error:
        raise OutsideFailed(f"The {name} of the provider {error.message}") from error
    return url


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def authorization_url(settings: Settings, *, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
    """Return the URL where the browser signs in. Raises OutsideFailed."""
    return token_endpoint.authorization_url(
        _client(settings, discover(_issuer(settings))),
        redirect_uri=redirect_uri,
        scopes=settings.oidc_scopes.split(),
        state=state,
        verifier=verifier,
        nonce=nonce,
    )


def _issuer(settings: Settings) -> str:
    assert settings.oidc_issuer is not None, "sign-in is not configured"
    return settings.oidc_issuer


def _client(settings: Settings, provider: Provider) -> OAuthClient:
    secret = settings.oidc_client_secret
    method = "client_secret_basic" if "client_secret_basic" in provider.auth_methods else "client_secret_post"
    return OAuthClient(
        provider_id=provider.issuer,
        client_id=settings.oidc_client_id or "",
        client_secret=secret,
        auth_url=provider.auth_url,
        token_url=provider.token_url,
        auth_method="none" if secret is None else method,
        pkce_method=PKCE_METHOD,
    )


def check_redirect(settings: Settings, issuer: str | None) -> None:
    """Check the issuer in the provider's redirect (RFC 9207), against mix-up with another provider. Raises Invalid."""
    provider = discover(_issuer(settings))
    if issuer != provider.issuer and (issuer is not None or provider.sends_issuer):
        raise Invalid("this answer comes from another provider", loc=("query", "iss"), status=400)


def identify(settings: Settings, *, code: str, redirect_uri: str, verifier: str, nonce: str) -> Identity:
    """Exchange a code for the identity of the person. Raises Invalid (400) if the code or the ID token is refused.

    Raises OutsideFailed if the provider does not answer.
    """
    provider = discover(_issuer(settings))
    client = _client(settings, provider)
    try:
        tokens = token_endpoint.exchange(client, code=code, redirect_uri=redirect_uri, verifier=verifier)
    except TokenRefused as error:
        raise Invalid("the provider refused the code", loc=("query", "code"), status=400) from error
    if tokens.id_token is None:
        raise _refused("it is missing")
    claims = _verified(provider, client.client_id, tokens, tokens.id_token, nonce)
    subject = claims["sub"]
    if not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
        raise _refused("its claim sub is empty, too long or not printable")
    claims = _with_userinfo(settings, provider, claims, tokens)
    return Identity(
        issuer=provider.issuer,
        subject=subject,
        name=_name(claims),
        claims=claims,
        id_token=tokens.id_token,
    )


def _verified(
    provider: Provider, client_id: str, tokens: Tokens, id_token: str, nonce: str
) -> Mapping[str, Any]:
    """Return the claims of an ID token whose signature and claims are valid. Raises Invalid, OutsideFailed."""
    options = {
        "iss": {"essential": True, "value": provider.issuer},
        "aud": {"essential": True, "value": client_id},
        "nonce": {"essential": True, "value": nonce},
    }
    params = {"nonce": nonce, "client_id": client_id, "access_token": tokens.access_token}
    try:
        token = _decoded(provider, id_token)
        header = {**token.header, "alg": "EdDSA"} if token.header["alg"] == "Ed25519" else token.header
        claims = CodeIDToken(token.claims, header, options, params)  # type: ignore[arg-type]
        claims.validate(leeway=LEEWAY_SECONDS)
    except ExpiredTokenError as error:
        raise _refused("it has expired") from error
    except ClaimError as error:
        raise _refused(f"its claim {error.claim} is missing or wrong") from error
    except (BadSignatureError, InvalidKeyIdError) as error:
        raise _refused("no key of the provider has signed it") from error
    except UnsupportedAlgorithmError as error:
        raise _refused("its algorithm is not one of the provider's") from error
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise _refused("it cannot be read") from error
    return dict(claims)


def _refused(reason: str) -> Invalid:
    log.warning("refused an ID token: %s", reason)
    return Invalid(f"the provider's ID token was refused: {reason}", loc=("query", "code"), status=400)


def _decoded(provider: Provider, id_token: str) -> jwt.Token:
    cached = _keys.get(provider.keys_url) or _fetch_keys(provider)
    try:
        return jwt.decode(id_token, key=cached.keys, registry=_registry(provider))
    except (BadSignatureError, InvalidKeyIdError, UnsupportedAlgorithmError):
        if time.monotonic() - cached.fetched_at < RETRY_SECONDS:
            raise
        forget()
        current = discover(provider.issuer)
        return jwt.decode(id_token, key=_fetch_keys(current).keys, registry=_registry(current))


def _registry(provider: Provider) -> JWSRegistry:
    return JWSRegistry(algorithms=list(provider.algorithms), strict_check_header=False)


def _fetch_keys(provider: Provider) -> _Keys:
    document = _document(provider.keys_url)
    usable = [key for key in document.get("keys") or () if isinstance(key, dict) and key.get("kty") != "oct"]
    if not usable:
        raise OutsideFailed("The provider publishes no key that signs ID tokens")
    try:
        keys = KeySet.import_key_set({"keys": usable})
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise OutsideFailed("The keys of the provider cannot be read") from error
    fetched = _keys[provider.keys_url] = _Keys(keys, time.monotonic())
    return fetched


def _with_userinfo(
    settings: Settings, provider: Provider, claims: Mapping[str, Any], tokens: Tokens
) -> Mapping[str, Any]:
    """Add the claims of the userinfo endpoint if the ID token lacks one that is needed. Its own claims take precedence."""
    needed = [settings.oidc_role_claim]
    if settings.oidc_organization_claim is not None:
        needed.append(settings.oidc_organization_claim)
    has_name = any(claims.get(name) for name in ("name", "preferred_username", "email"))
    if provider.userinfo_url is None or (has_name and all(values_at(claims, name) for name in needed)):
        return claims
    more = _document(provider.userinfo_url, {"Authorization": f"Bearer {tokens.access_token}"})
    if more.get("sub") != claims["sub"]:
        raise _refused("the userinfo endpoint describes another person")
    return {**more, **claims}


def values_at(claims: Mapping[str, Any], path: str) -> Sequence[str]:
    """Return the printable texts of a claim. Dots in `path` lead into objects, unless a claim has that name."""
    value: Any = claims
    for name in (path,) if path in claims else path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    texts = [value] if isinstance(value, str) and value else _texts(value)
    return [text for text in texts if text.isprintable()]


def _name(claims: Mapping[str, Any]) -> str:
    """Return the name of a person for display, with the address that the provider has not marked as unverified."""
    known = [claims.get(name) for name in ("name", "preferred_username")]
    name = next((text for text in known if isinstance(text, str) and text.strip()), "")
    email = claims.get("email") if claims.get("email_verified") is not False else None
    if isinstance(email, str) and email.strip() and email != name:
        name = f"{name} <{email}>" if name else email
    return one_line(name or str(claims["sub"]))[:MAX_NAME]


def logout_url(settings: Settings, *, id_token: str | None, return_to: str) -> str | None:
    """Return the URL where the browser ends its session at the provider, or None if the provider has none."""
    if settings.oidc_issuer is None:
        return None
    try:
        provider = discover(settings.oidc_issuer)
    except OutsideFailed:
        return None  # the session here ends all the same
    if provider.logout_url is None:
        return None
    params = {"client_id": settings.oidc_client_id or "", "post_logout_redirect_uri": return_to}
    if id_token is not None:
        params["id_token_hint"] = id_token
    return add_params_to_uri(provider.logout_url, list(params.items()))


def _document(url: str, headers: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Fetch a JSON object. Raises OutsideFailed."""
    answer = egress.request("GET", url, headers=headers)
    document = answer.json() if answer.status == 200 else None
    if not isinstance(document, dict):
        raise OutsideFailed(f"{url.partition('?')[0]} did not answer with a JSON object ({answer.status})")
    return document
