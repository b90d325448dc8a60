"""Webhooks: validation of URLs that are called for ends of runs and for questions, and the outbox of deliveries.

The transaction that ends a run with a webhook inserts a delivery row, however the run ends. The row contains everything
that will be sent, because the run may be deleted a moment later. `workers/upkeep/webhook_deliveries.py` claims
deliveries with a lease, like runs, and sends them. The receiver's response never changes the run. The statements are in
`shared/sql/outbox.sql`.

`shared/inbox/notices.py` inserts the deliveries about questions. Their `status` is a `QuestionEvent`, and their `values`
are the question's record. `shared/figures/budgets.py` inserts those about budgets, whose `status` is a `BudgetEvent`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx2
from sqlalchemy import Connection, text

from shared.deployments.deployments import PATH_PREFIX
from shared.errors import AddressRefused, Invalid, OutsideFailed
from shared.infra import egress
from shared.infra.arrays import doubles, uuids
from shared.infra.postgres import dumps
from shared.sql import Conn, statement

LOC = ("body", "webhook")
# A path traversal that could leave the deployment's paths.
TRAVERSAL = re.compile(r"(?:^|[/\\])(?:\.|%2e){1,2}(?:[/\\?#]|$)|%2f|%5c", re.IGNORECASE)

TRIES = 5
# Pause after each failed attempt, varied by ±10 %. The last attempt is made within an hour of the first.
RETRY_SECONDS = (10.0, 120.0, 600.0, 2400.0)
LEASE_SECONDS = 30.0  # longer than any attempt takes
AT_ONCE_PER_DEPLOYMENT = 8  # a slow receiver must not delay the deliveries of other deployments


class QuestionEvent(enum.StrEnum):
    """The `type` in the body of a delivery about a question. Every value begins with `question.`"""

    ASKED = "question.asked"
    REMINDER = "question.reminder"
    EXPIRED = "question.expired"


class BudgetEvent(enum.StrEnum):
    """The `type` in the body of a delivery about a budget. `figures.spend` inserts them. Every value begins with `budget.`"""

    REACHED = "budget.reached"  # a share of a limit
    UNPRICED = "budget.unpriced"  # a model without a price was called, which a budget in dollars counts as 0


# Validation of webhook URLs


def rules_of(conn: Connection, revision_id: UUID | None) -> dict[str, Any]:
    """Return the URL rules of the project's langgraph.json, or an empty mapping."""
    return _configured(conn, revision_id).get("url") or {}


def _configured(conn: Connection, revision_id: UUID | None) -> dict[str, Any]:
    query = text("SELECT manifest -> 'webhooks' FROM revision WHERE id = :id")
    return conn.execute(query, {"id": revision_id}).scalar_one_or_none() or {}


def leads_back(url: str) -> bool:
    """Return whether the URL is a path at the deployment's own address."""
    return url.startswith("/")


def deployment_url(service_url: str, deployment_name: str, path: str) -> str:
    """Return the full URL of a path at a deployment."""
    return f"{service_url.rstrip('/')}{PATH_PREFIX}{deployment_name}{path}"


def check(url: str, rules: Mapping[str, Any], *, url_of: Callable[[str], str] | None = None) -> None:
    """Raise Invalid if the operator's or the project's rules forbid the URL. Resolves the host name.

    `url_of` turns a path at the deployment into a URL. Paths are accepted only if the project allows them
    (`disable_loopback: false`). Of the project's rules, only the maximum length applies to a path; the operator's rules
    apply in full.
    """
    if url_of is not None and leads_back(url) and not rules.get("disable_loopback", True):
        if TRAVERSAL.search(url):
            raise _refused("Webhook path must not contain . or .. segments")
        url, rules = url_of(url), {"max_url_length": rules.get("max_url_length")}
    try:
        parsed = httpx2.URL(url)
        host = parsed.raw_host.decode("ascii")
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise _refused("Invalid webhook URL") from error
    if not host.strip("[]."):
        raise _refused(f"Invalid webhook hostname '{parsed.host}'")
    if parsed.scheme != "https" and not (parsed.scheme == "http" and egress.allows_http()):
        raise _refused("Webhook must use https")
    port = parsed.port or egress.DEFAULT_PORTS[parsed.scheme]
    _check_rules(url, parsed.scheme, host, port, rules)
    try:
        egress.check_url(url)
        egress.check_host(host, port)
    except AddressRefused as error:
        raise _refused(_blocked(host) or _refusal_text(error.message)) from error
    except (OutsideFailed, TimeoutError) as error:
        raise _refused("Webhook host blocked: DNS resolution failed") from error


def _check_rules(url: str, scheme: str, host: str, port: int, rules: Mapping[str, Any]) -> None:
    if rules.get("require_https") and scheme != "https":
        raise _refused("Webhook must use https")
    longest = rules.get("max_url_length")
    if longest is not None and len(url) > longest:
        raise _refused(f"Webhook URL is longer than {longest} characters")
    domains = rules.get("allowed_domains")
    if domains and not any(_is_in_domain(host.rstrip(".").lower(), domain) for domain in domains):
        raise _refused(f"Webhook host '{host}' is not allowed by this deployment")
    if rules.get("allowed_ports") and port not in rules["allowed_ports"]:
        raise _refused(f"Webhook port {port} is not allowed by this deployment")


def _is_in_domain(host: str, domain: str) -> bool:
    """Return whether the host matches the domain. `*.example.com` matches subdomains, not `example.com` itself."""
    return host.endswith(domain[1:]) if domain.startswith("*.") else host == domain


def _blocked(host: str) -> str | None:
    """Return why calls to this host are blocked, or None. Looks at the host name or literal address, without DNS."""
    if egress.is_localhost(host):
        return "Webhook host blocked: localhost address"
    address = egress.literal_address(host)
    if address is None or not egress.is_refused(address):
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    kind = "loopback IP range" if (mapped or address).is_loopback else "private or reserved IP range"
    return f"Webhook host blocked: {kind}"


def _refusal_text(message: str) -> str:
    return f"Webhook {message}" if message.startswith("must") else f"Webhook host blocked: {message}"


def _refused(message: str) -> Invalid:
    return Invalid(message, loc=LOC)


# Request headers

TEMPLATE = re.compile(r"\$\{\{\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


def headers_of(conn: Connection, revision_id: UUID | None) -> dict[str, str]:
    """Return the headers of the project's langgraph.json. Values may contain templates of environment variables."""
    return _configured(conn, revision_id).get("headers") or {}


# The outbox of deliveries

_RECORD = statement("outbox.record")
_CLAIM = statement("outbox.claim")
_RECORD_ATTEMPT = statement("outbox.record_attempt")
_SHORTEN_PAUSES = statement("outbox.shorten_pauses")


def record(
    conn: Conn,
    run_ids: Sequence[UUID],
    *,
    status: str | None = None,
    error: Mapping[str, Any] | None = None,
) -> None:
    """Insert deliveries for those of the runs that have a webhook, after they have ended or before they are deleted.

    `status` is sent instead of the run's status; with `rollback`, no values are sent. `error` is sent for runs that did
    not succeed and have no error of their own.
    """
    _RECORD.count(conn, run_ids=uuids(run_ids), status=status, error=None if error is None else dumps(error))


@dataclass(frozen=True, slots=True)
class Delivery:
    """An attempt at a delivery, claimed by this process until the lease expires."""

    delivery_id: UUID
    deployment_id: UUID
    deployment_name: str
    revision_id: UUID | None  # the active revision: its environment variables contain the secret
    run_id: UUID | None  # None: it is about a budget
    url: str
    status: str
    run: dict[str, Any]
    values: Any
    error: dict[str, Any] | None
    attempt: int
    owner: str

    @property
    def is_of_question(self) -> bool:
        return self.status in set(QuestionEvent)

    @property
    def is_of_budget(self) -> bool:
        return self.status in set(BudgetEvent)


def claim(conn: Connection, *, owner: str, limit: int) -> list[Delivery]:
    """Claim due deliveries. The deliveries of a process that died become due when their lease expires."""
    rows = _CLAIM.rows(
        conn, owner=owner, lease_seconds=LEASE_SECONDS, per_deployment=AT_ONCE_PER_DEPLOYMENT, limit=limit
    )
    return [Delivery(**row) for row in rows]


def settle(
    conn: Connection, delivery: Delivery, failure: str | None, *, response_status: int | None = None
) -> bool:
    """Record a delivery attempt. Returns False if it failed and no attempts are left.

    Changes nothing if another process has claimed the delivery since.
    """
    is_last = failure is not None and delivery.attempt >= TRIES
    retry = None if failure is None or is_last else RETRY_SECONDS[delivery.attempt - 1]
    _RECORD_ATTEMPT.count(
        conn,
        failure=failure,
        response_status=response_status,
        retry_seconds=retry,
        delivery_id=delivery.delivery_id,
        owner=delivery.owner,
        attempt=delivery.attempt,
    )
    return not is_last


def shorten_pauses(conn: Connection) -> int:
    """Shorten pauses and leases that reach too far into the future. Returns how many.

    This happens if the database's clock was set back (`claims.shorten_leases`).
    """
    return _SHORTEN_PAUSES.count(conn, lease_seconds=LEASE_SECONDS, pauses=doubles(RETRY_SECONDS))
