"""Settings of sign-in with OpenID Connect, and their validation."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from shared.setting_values import ROLES, BadSetting, RoleMap, setting

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
SHORTEST_SESSION_SECONDS, LONGEST_SESSION_SECONDS = 60, 30 * 86_400


@dataclass(frozen=True, kw_only=True)
class SignInSettings:
    """The part of `Settings` for sign-in. Without an issuer, people need API keys."""

    oidc_issuer: str | None = setting(
        "RUNYARD_OIDC_ISSUER",
        None,
        "the issuer of the OpenID Connect provider that people sign in with, exactly as its metadata names it: see [Sign-in](../operating/sign-in.md). Not set: only API keys",
    )
    oidc_client_id: str | None = setting(
        "RUNYARD_OIDC_CLIENT_ID", None, "the id of this service as a client of the provider"
    )
    oidc_client_secret: str | None = setting(
        "RUNYARD_OIDC_CLIENT_SECRET",
        None,
        "the client's secret; not set: a public client, which only PKCE protects",
        is_secret=True,
    )
    oidc_scopes: str = setting(
        "RUNYARD_OIDC_SCOPES",
        "openid profile email",
        "the scopes that the service requests, separated by spaces; `openid` must be among them",
    )
    oidc_label: str | None = setting(
        "RUNYARD_OIDC_LABEL",
        None,
        "the provider's name on the sign-in page: `Sign in with LABEL`",
        shown="the host name of the issuer",
    )
    oidc_role_claim: str = setting(
        "RUNYARD_OIDC_ROLE_CLAIM",
        "roles",
        "the claim with a user's roles or groups, a string or a list; dots lead into objects, as in `realm_access.roles`",
    )
    oidc_roles: RoleMap = setting(
        "RUNYARD_OIDC_ROLES",
        (),
        "the role for each value of that claim: `staff=run,platform=admin`. A user with several values gets the highest role",
    )
    oidc_default_role: str | None = setting(
        "RUNYARD_OIDC_DEFAULT_ROLE",
        None,
        "the role of users without a value in `RUNYARD_OIDC_ROLES`; not set: they may not sign in",
    )
    oidc_organization_claim: str | None = setting(
        "RUNYARD_OIDC_ORGANIZATION_CLAIM",
        None,
        "the claim with the name or id of a user's organization; a user without one may not sign in. Not set: everybody belongs to the default organization",
    )
    oidc_key_days: int = setting(
        "RUNYARD_OIDC_KEY_DAYS",
        30,
        "days until an API key expires that `runyard login` created by a sign-in",
    )
    session_seconds: float = setting(
        "RUNYARD_SESSION_SECONDS", 43_200.0, "time after which a user must sign in again"
    )
    session_idle_seconds: float = setting(
        "RUNYARD_SESSION_IDLE_SECONDS", 7_200.0, "a session that is not used for this time ends"
    )

    def check_sign_in(self, *, url: str, app_domain: str | None, is_dev: bool) -> None:
        """Raise BadSetting if a setting is invalid, or if a session would not be safe at the service's URL."""
        if self.oidc_default_role is not None and self.oidc_default_role not in ROLES:
            raise BadSetting(f"RUNYARD_OIDC_DEFAULT_ROLE must be one of {', '.join(ROLES)}")
        if not 1 <= self.oidc_key_days <= 3650:
            raise BadSetting("RUNYARD_OIDC_KEY_DAYS must be between 1 and 3650")
        for name in ("session_seconds", "session_idle_seconds"):
            if not SHORTEST_SESSION_SECONDS <= getattr(self, name) <= LONGEST_SESSION_SECONDS:
                raise BadSetting(
                    f"RUNYARD_{name.upper()} must be between {SHORTEST_SESSION_SECONDS} and {LONGEST_SESSION_SECONDS}"
                )
        if "openid" not in self.oidc_scopes.split():
            raise BadSetting("RUNYARD_OIDC_SCOPES must contain openid")
        if self.oidc_issuer is None:
            for name in ("oidc_client_id", "oidc_client_secret", "oidc_roles", "oidc_default_role"):
                if getattr(self, name):
                    raise BadSetting(f"RUNYARD_{name.upper()} has no effect without RUNYARD_OIDC_ISSUER")
            return
        issuer = _split(self.oidc_issuer)
        if issuer is None or issuer.query or issuer.fragment:
            raise BadSetting(
                "RUNYARD_OIDC_ISSUER must be a URL without a query, as the provider names itself"
            )
        if not self.oidc_client_id:
            raise BadSetting("RUNYARD_OIDC_ISSUER needs RUNYARD_OIDC_CLIENT_ID")
        if not self.oidc_roles and self.oidc_default_role is None:
            raise BadSetting(
                "RUNYARD_OIDC_ISSUER needs RUNYARD_OIDC_ROLES or RUNYARD_OIDC_DEFAULT_ROLE: otherwise nobody has a role"
            )
        if is_dev:
            raise BadSetting(
                "RUNYARD_OIDC_ISSUER cannot be used with `runyard dev`: the project's pages share the console's origin"
                " there, and could act as the user"
            )
        service = _split(url)
        if service is None or (service.scheme != "https" and service.hostname not in LOCAL_NAMES):
            raise BadSetting(
                "RUNYARD_OIDC_ISSUER needs a RUNYARD_URL that begins with https://, or one of this machine:"
                " session cookies must not travel unencrypted"
            )
        domain = (app_domain or "").partition(":")[0].lower()
        if domain and str(service.hostname).endswith(f".{domain}"):
            raise BadSetting(
                "RUNYARD_OIDC_ISSUER needs a RUNYARD_URL outside RUNYARD_APP_DOMAIN, whose names belong to deployments"
            )


def _split(url: str) -> SplitResult | None:
    """Split an http(s) URL that has a host. Returns None for any other text."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname else None
