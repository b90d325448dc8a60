"""An OAuth 2 authorization server, built with authlib, on a loopback port, and the browser of its one user.

Requires PKCE from public clients, rotates refresh tokens, sends its issuer (RFC 9207), registers clients (RFC 7591),
revokes tokens (RFC 7009), and guards an MCP server at `/mcp` (RFC 9728, RFC 8414). With the scope `openid` it is an OpenID
Connect provider: discovery, keys, signed ID tokens, userinfo and logout.
"""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import ClientMixin, TokenMixin, grants
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9207 import IssuerParameter
from flask import Flask, Response, jsonify, redirect, request
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from tests.support.outside import serving

USER = "the user"
SECRET = "s3cret/with+signs&more"


@dataclass
class Client(ClientMixin):
    client_id: str
    client_secret: str
    method: str
    redirect_uris: tuple[str, ...]

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str | None:
        return None

    def get_allowed_scope(self, scope: str) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.redirect_uris

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.client_secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == self.method

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in ("authorization_code", "refresh_token")


@dataclass
class Code:
    client_id: str
    redirect_uri: str
    scope: str
    code_challenge: str | None
    code_challenge_method: str | None
    nonce: str | None = None

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Token(TokenMixin):
    client_id: str
    access_token: str
    refresh_token: str | None
    scope: str
    is_spent: bool = False

    def check_client(self, client: ClientMixin) -> bool:
        return client.get_client_id() == self.client_id  # type: ignore[attr-defined]

    def get_scope(self) -> str:
        return self.scope

    def get_expires_in(self) -> int:
        return 3600

    def is_expired(self) -> bool:
        return False

    def is_revoked(self) -> bool:
        return self.is_spent

    def get_user(self) -> str:
        return USER

    def get_client(self) -> None:
        return None


@dataclass
class OAuthServer:
    """State of the server, and the deviations that a test can set."""

    url: str = ""
    clients: dict[str, Client] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    tokens: list[Token] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)  # forms sent to the token endpoint
    revoked: list[str] = field(default_factory=list)
    denies: bool = False
    issuer: str | None = None  # issuer in answers; None: the server's URL
    bend: Callable[[Response], Response] | None = None  # changes an answer of the token endpoint
    metadata: dict[str, Any] = field(default_factory=dict)  # overrides of the server's metadata
    claims: dict[str, Any] = field(
        default_factory=dict
    )  # overrides of an ID token's claims; None: without it
    userinfo: dict[str, Any] = field(default_factory=dict)  # claims beside `sub` at the userinfo endpoint
    keys: list[Any] = field(
        default_factory=lambda: [rsa_key("first")]
    )  # the published keys; the last one signs
    signs_with: Any = None  # another key that signs ID tokens
    secret: str | None = None  # signs ID tokens in place of the keys
    algorithm: str = "RS256"
    key_requests: int = 0
    logouts: list[dict[str, str]] = field(default_factory=list)  # queries of the logout page

    def reset(self) -> None:
        """Restore the initial state. The URL stays."""
        self.__dict__.update(OAuthServer(url=self.url).__dict__)

    def client(self, method: str, *redirect_uris: str, client_id: str = "us") -> Client:
        """Register a client with this authentication method."""
        secret = "" if method == "none" else SECRET
        self.clients[client_id] = Client(client_id, secret, method, redirect_uris)
        return self.clients[client_id]

    def provider(self, **more: Any) -> dict[str, Any]:
        """Return the request body that creates the provider for the client `us`."""
        return {
            "provider_id": "acme",
            "name": "Acme",
            "client_id": "us",
            "client_secret": SECRET,
            "auth_url": f"{self.url}/authorize",
            "token_url": f"{self.url}/token",
            **more,
        }

    def openid(self, redirect_uri: str, method: str = "client_secret_basic") -> dict[str, Any]:
        """Register the client of a service's sign-in. Returns the service's settings for it."""
        self.client(method, redirect_uri, client_id="runyard")
        return {
            "oidc_issuer": self.url,
            "oidc_client_id": "runyard",
            "oidc_client_secret": None if method == "none" else SECRET,
            "oidc_roles": (("staff", "run"), ("platform", "admin"), ("owners", "operator")),
        }

    def id_token(self, code: Code) -> str:
        now = int(time.time())
        usual = {
            "iss": self.url,
            "sub": "ann-1",
            "aud": code.client_id,
            "iat": now,
            "exp": now + 300,
            "nonce": code.nonce,
            "name": "Ann Example",
            "email": "ann@example.com",
            "roles": ["platform"],
        }
        claims = {name: value for name, value in {**usual, **self.claims}.items() if value is not None}
        if self.secret is not None:
            return signed_with(self.secret, claims, "first")
        key = self.signs_with or self.keys[-1]
        return jwt.encode({"alg": self.algorithm, "kid": key.kid}, claims, key, algorithms=[self.algorithm])

    def refreshes(self) -> int:
        return sum(form["grant_type"] == "refresh_token" for form in self.asked)

    def consent(self, url: str) -> str:
        """Open the page as the user and confirm. Returns the URL that the user is redirected to."""
        with httpx.Client(timeout=20) as browser:
            shown = browser.get(url)
            assert shown.status_code == 200, shown.text
            confirmed = browser.post(url, data={"confirm": "yes"})
        assert confirmed.status_code == 302, confirmed.text
        return confirmed.headers["location"]


@cache
def rsa_key(name: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig"})


def ec_key(name: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": name, "use": "sig"})


def signed_with(secret: str, claims: Mapping[str, Any], key_id: str) -> str:
    """Return a token with an HMAC signature. Written by hand, since libraries refuse public keys as secrets."""
    header = {"alg": "HS256", "kid": key_id}
    signed = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
    return b".".join((signed, _encoded(hmac.digest(secret.encode(), signed, "sha256")))).decode()


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def returned(location: str) -> dict[str, str]:
    """Return the query parameters of the redirect."""
    return {name: values[-1] for name, values in parse_qs(urlsplit(location).query).items()}


@contextmanager
def oauth_server() -> Iterator[OAuthServer]:
    known = OAuthServer()
    with serving(_app(known)) as port:
        known.url = f"http://127.0.0.1:{port}"
        yield known


def _app(known: OAuthServer) -> Flask:
    app = Flask("oauth server")
    app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True
    app.config["OAUTH2_TOKEN_EXPIRES_IN"] = {"authorization_code": 3600, "refresh_token": 3600}
    server = AuthorizationServer(
        app, query_client=lambda client_id: known.clients.get(client_id), save_token=_saver(known)
    )
    _extend(server, known)

    @app.route("/authorize", methods=["GET", "POST"])
    def authorize() -> Any:
        try:
            grant = server.get_consent_grant(end_user=USER)
        except OAuth2Error as error:
            return str(error), 400
        if request.method == "GET":
            return "<title>Provider</title><form method=post><button name=confirm value=yes>Allow</button></form>"
        return server.create_authorization_response(grant_user=None if known.denies else USER, grant=grant)

    @app.post("/token")
    def token() -> Response:
        known.asked.append(request.form.to_dict())
        code = known.codes.get(request.form.get("code", ""))
        answer = server.create_token_response()
        if code is not None and answer.status_code == 200 and "openid" in code.scope.split():
            answer.data = app.json.dumps({**(answer.json or {}), "id_token": known.id_token(code)})
        return known.bend(answer) if known.bend else answer

    @app.post("/register")
    def register() -> Any:
        return server.create_endpoint_response("client_registration")

    @app.post("/revoke")
    def revoke() -> Any:
        return server.create_endpoint_response("revocation")

    @app.route("/mcp", methods=["GET", "POST"])
    def mcp() -> Any:
        place = f"{known.url}/.well-known/oauth-protected-resource/mcp"
        return "", 401, {"WWW-Authenticate": f'Bearer resource_metadata="{place}"'}

    @app.get("/.well-known/oauth-protected-resource/mcp")
    def resource() -> Any:
        return jsonify(resource=f"{known.url}/mcp", authorization_servers=[f"{known.url}/tenant"])

    @app.get("/.well-known/oauth-authorization-server/tenant")
    def metadata() -> Any:
        usual = {
            "issuer": f"{known.url}/tenant",
            "authorization_endpoint": f"{known.url}/authorize",
            "token_endpoint": f"{known.url}/token",
            "registration_endpoint": f"{known.url}/register",
            "revocation_endpoint": f"{known.url}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "none"],
        }
        return jsonify(
            {name: value for name, value in {**usual, **known.metadata}.items() if value is not None}
        )

    @app.get("/.well-known/openid-configuration")
    def openid_metadata() -> Any:
        usual = {
            "issuer": known.url,
            "authorization_endpoint": f"{known.url}/authorize",
            "token_endpoint": f"{known.url}/token",
            "jwks_uri": f"{known.url}/keys",
            "userinfo_endpoint": f"{known.url}/userinfo",
            "end_session_endpoint": f"{known.url}/logout",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256", "ES256"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none"],
            "authorization_response_iss_parameter_supported": True,
        }
        return jsonify(
            {name: value for name, value in {**usual, **known.metadata}.items() if value is not None}
        )

    @app.get("/keys")
    def keys() -> Any:
        known.key_requests += 1
        return jsonify(KeySet(known.keys).as_dict(private=False))

    @app.get("/userinfo")
    def userinfo() -> Any:
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not any(token.access_token == sent for token in known.tokens):
            return "", 401
        return jsonify({"sub": "ann-1", **known.userinfo})

    @app.get("/logout")
    def logout() -> Any:
        known.logouts.append(request.args.to_dict())
        return redirect(request.args["post_logout_redirect_uri"])

    return app


def _saver(known: OAuthServer) -> Callable[[dict[str, Any], Any], None]:
    def save(token: dict[str, Any], asked: Any) -> None:
        known.tokens.append(
            Token(
                asked.client.client_id,
                token["access_token"],
                token.get("refresh_token"),
                token.get("scope") or "",
            )
        )

    return save


def _extend(server: AuthorizationServer, known: OAuthServer) -> None:
    class CodeGrant(grants.AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post", "none"]  # noqa: RUF012

        def save_authorization_code(self, code: str, request: Any) -> None:
            data = request.payload.data
            known.codes[code] = Code(
                request.client.client_id,
                request.payload.redirect_uri,
                request.payload.scope or "",
                data.get("code_challenge"),
                data.get("code_challenge_method"),
                data.get("nonce"),
            )

        def query_authorization_code(self, code: str, client: Client) -> Code | None:
            found = known.codes.get(code)
            return found if found and found.client_id == client.client_id else None

        def delete_authorization_code(self, authorization_code: Code) -> None:
            known.codes = {code: kept for code, kept in known.codes.items() if kept is not authorization_code}

        def authenticate_user(self, authorization_code: Code) -> str:
            return USER

    class RefreshGrant(grants.RefreshTokenGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = CodeGrant.TOKEN_ENDPOINT_AUTH_METHODS
        INCLUDE_NEW_REFRESH_TOKEN = True

        def authenticate_refresh_token(self, refresh_token: str) -> Token | None:
            live = (token for token in known.tokens if token.refresh_token == refresh_token)
            return next((token for token in live if not token.is_spent), None)

        def authenticate_user(self, refresh_token: Token) -> str:
            return USER

        def revoke_old_credential(self, refresh_token: Token) -> None:
            refresh_token.is_spent = True

    class Issuer(IssuerParameter):
        def get_issuer(self) -> str | None:
            return known.issuer or known.url

    class Registration(ClientRegistrationEndpoint):
        def authenticate_token(self, request: Any) -> str:
            return "anybody"

        def get_server_metadata(self) -> dict[str, Any]:
            return {}

        def save_client(self, client_info: Any, client_metadata: Any, request: Any) -> Client:
            method = client_metadata.get("token_endpoint_auth_method", "client_secret_basic")
            client = known.client(
                method, *client_metadata["redirect_uris"], client_id=client_info["client_id"]
            )
            client.client_secret = client_info["client_secret"]
            return client

    class Revocation(RevocationEndpoint):
        CLIENT_AUTH_METHODS = CodeGrant.TOKEN_ENDPOINT_AUTH_METHODS

        def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
            known.revoked.append(token_string)
            return None

    server.register_grant(CodeGrant, [CodeChallenge(required=True)])
    server.register_grant(RefreshGrant)
    server.register_extension(Issuer())
    server.register_endpoint(Registration)
    server.register_endpoint(Revocation)


def slowly(seconds: float) -> Callable[[Response], Response]:
    """Return a `bend` that delays the answer of the token endpoint."""

    def bend(answer: Response) -> Response:
        time.sleep(seconds)
        return answer

    return bend
