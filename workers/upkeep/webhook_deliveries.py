"""Delivers webhooks: claims due deliveries from the outbox, calls the receiver and records the result.

Every runner and builder runs this loop. An attempt is claimed under a lease, so another process repeats the attempt of
a process that died, under the same id. Receivers get each end at least once and recognize a repetition by its id. The
headers and the signature follow the Standard Webhooks convention.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import gevent
import orjson
from gevent.event import Event as Signal
from gevent.pool import Pool

from shared.deployments import logs, secrets
from shared.deployments.logs import Line
from shared.errors import OutsideFailed, Unavailable
from shared.figures import budgets
from shared.infra import egress, trace_context, tracing
from shared.infra.encryption import Undecryptable
from shared.infra.loops import forever
from shared.infra.postgres import connection, database_time
from shared.records import one_line
from shared.runs import webhooks
from shared.runs.read import RUN
from shared.runs.webhooks import TEMPLATE, BudgetEvent, Delivery, QuestionEvent

log = logging.getLogger(__name__)

SECRET = "WEBHOOK_SIGNING_SECRET"  # variable of the deployment; without it deliveries are not signed
SECRET_PREFIX = "whsec_"  # marks a secret in base64
POLL_SECONDS = 1.0
BREATH_SECONDS = 0.05  # pause between two claims, however quickly receivers answer
AT_ONCE = 32
INTERNAL_FIELDS = ("attempts",)  # names machines of the platform
TIMES = ("created_at", "updated_at", "started_at", "ended_at")


class Deliveries:
    """The delivery loop, from `start()` until `drain()`. `service_url` is the URL of this service."""

    def __init__(self, owner: str, service_url: str) -> None:
        self._owner = owner
        self._service_url = service_url
        self._pool = Pool(AT_ONCE)
        self._wake = Signal()
        self._draining = False

    def start(self) -> None:
        gevent.spawn(forever, self._take, self._wait, what="taking webhooks", until=lambda: self._draining)

    def drain(self) -> None:
        """Start no further attempts."""
        self._draining = True

    def _wait(self) -> None:
        gevent.sleep(BREATH_SECONDS)
        self._wake.wait(POLL_SECONDS)
        self._wake.clear()

    def _take(self) -> None:
        free = self._pool.free_count()
        if not free:
            return
        with connection() as conn:
            claimed = webhooks.claim(conn, owner=self._owner, limit=free)
        for delivery in claimed:
            self._pool.spawn(self._deliver, delivery)

    def _deliver(self, delivery: Delivery) -> None:
        try:
            deliver(delivery, self._service_url)
        except Unavailable as error:
            log.warning("webhook %s: tried again later: %s", delivery.delivery_id, error)
        except Exception:  # outermost loop: the lease expires and the attempt is repeated
            log.exception("webhook %s: the attempt failed", delivery.delivery_id)
        finally:
            self._wake.set()


def deliver(delivery: Delivery, service_url: str) -> None:
    """Make one attempt and record its result."""
    failure, status = _attempt(delivery, service_url)
    with connection() as conn:
        is_retried = webhooks.settle(conn, delivery, failure, response_status=status)
        if failure is not None:
            logs.append(conn, [_line(delivery, failure, is_retried)])
    if failure is None:
        log.info("webhook %s: delivered", delivery.delivery_id)
    else:
        log.warning("webhook %s: attempt %d: %s", delivery.delivery_id, delivery.attempt, failure)


def _attempt(delivery: Delivery, service_url: str) -> tuple[str | None, int | None]:
    """Call the receiver. Returns `(failure, status)`: why it failed or None, and the HTTP status, if any.

    A call to this service's own deployments carries no platform credentials. The author of a webhook names the path,
    and could otherwise make the service do what the author may not do.
    """
    if delivery.attempt > webhooks.TRIES:
        return "the process that made the last attempt ended", None
    now = database_time()  # receivers reject timestamps that are minutes old
    try:
        body = _body(delivery, service_url, now)
        sent = headers(delivery, body, now)
        answer = egress.request("POST", _address(delivery, service_url), headers=sent, body=body)
    except (OutsideFailed, Undecryptable) as error:
        return error.message, None
    return None if answer.is_success else f"the receiver answered {answer.status}", answer.status


def _body(delivery: Delivery, service_url: str, now: datetime) -> bytes:
    if delivery.is_of_budget:
        return budget_content(delivery)
    return question_content(delivery, service_url) if delivery.is_of_question else content(delivery, now)


def _address(delivery: Delivery, service_url: str) -> str:
    if webhooks.leads_back(delivery.url):
        return webhooks.deployment_url(service_url, delivery.deployment_name, delivery.url)
    return delivery.url


def content(delivery: Delivery, now: datetime) -> bytes:
    """Return the body of a delivery: the run's record at its end, its thread's values and its error."""
    run = {**delivery.run, "status": delivery.status}
    for name in TIMES:
        run[name] = None if run[name] is None else datetime.fromisoformat(run[name])
    run = {**dict.fromkeys(RUN.columns), **run}  # an earlier release may have stored fewer columns
    record = {name: value for name, value in RUN.show(run).items() if name not in INTERNAL_FIELDS}
    body: dict[str, Any] = {
        **record,
        "run_started_at": run["started_at"],
        "run_ended_at": run["ended_at"],
        "webhook_sent_at": now,
        "values": delivery.values,
    }
    if delivery.error is not None:
        body["error"] = delivery.error
    return orjson.dumps(body)


# Characters with a meaning in chat messages, such as a mention of everybody, or a link whose text is another address.
PLAIN_TEXT = str.maketrans({"<": "‹", ">": "›", "@": "＠", "[": "［", "]": "］"})
VERBS = {
    QuestionEvent.ASKED: "is waiting for an answer",
    QuestionEvent.REMINDER: "is still waiting for an answer",
    QuestionEvent.EXPIRED: "was not answered in time",
}


def question_content(delivery: Delivery, service_url: str) -> bytes:
    """Return the body of a delivery about a question.

    Incoming webhooks of chats show `text`. It is one line. A title that a user wrote cannot mention anybody or hide an
    address behind another text.
    """
    question = delivery.values
    path = "/".join(
        quote(part, safe="") for part in ("d", delivery.deployment_name, "threads", question["thread_id"])
    )
    url = f"{service_url.rstrip('/')}/o/#/{path}"
    title = one_line(question["thread_title"]) or "A thread"
    text = f"{delivery.deployment_name}: “{title}” {VERBS[QuestionEvent(delivery.status)]}.".translate(
        PLAIN_TEXT
    )
    return orjson.dumps({"type": delivery.status, "question": question, "url": url, "text": f"{text} {url}"})


def budget_content(delivery: Delivery) -> bytes:
    """Return the body of a delivery about a budget. Incoming webhooks of chats show `text`."""
    event = delivery.values
    name, day = event["name"], date.fromisoformat(event["day"])
    head = {"type": delivery.status, "deployment": delivery.deployment_name, "day": event["day"]}
    if delivery.status == BudgetEvent.UNPRICED:
        told = f"the model {name} has no price: budgets in dollars count it as 0."
        body: dict[str, Any] = {**head, "model": name}
    else:
        used, limit = (
            budgets.amount(event["unit"], Decimal(repr(event[field]))) for field in ("used", "limit")
        )
        told = f"{event['percent']} % of {name} is used: {used} of {limit}."
        subject = {"kind": event["kind"], "id": budgets.id_of((event["kind"], event["id"]))}
        budget = {field: event[field] for field in ("name", "unit", "limit", "used", "percent")}
        resets_at = datetime.combine(day + timedelta(days=1), time(), UTC)
        body = {**head, "budget": {**budget, "subject": subject, "resets_at": resets_at}}
    return orjson.dumps(
        {**body, "text": f"{delivery.deployment_name}: {one_line(told).translate(PLAIN_TEXT)}"}
    )


def headers(delivery: Delivery, body: bytes, now: datetime) -> dict[str, str]:
    """Return the headers of a delivery: the project's own, id, timestamp, trace context and signature.

    Raises Undecryptable, or OutsideFailed if a header needs a variable that is not set.
    """
    timestamp = str(int(now.timestamp()))
    configured, variables = _configured(delivery)
    context = None
    if delivery.run_id is not None:
        context = trace_context.of_kwargs(delivery.run["kwargs"])
        if context is not None and tracing.tracer() is not None:
            context = trace_context.of_run(delivery.run_id, context)
    sent = {
        **{name: _filled(name, value, variables) for name, value in configured.items()},
        "Content-Type": "application/json",
        "Webhook-Id": str(delivery.delivery_id),
        "Webhook-Timestamp": timestamp,
        **(context.headers if context is not None else {}),
    }
    secret = variables.get(SECRET)
    if secret:
        signed = [sign(one, sent["Webhook-Id"], timestamp, body) for one in _secrets(secret)]
        sent["Webhook-Signature"] = " ".join(signed)
    return sent


def _configured(delivery: Delivery) -> tuple[dict[str, str], dict[str, str]]:
    """Return the project's webhook headers, and the deployment's variables that these and the signature need."""
    if delivery.revision_id is None:
        return {}, {}
    with connection() as conn:
        configured = webhooks.headers_of(conn, delivery.revision_id)
        names = {SECRET, *(name for value in configured.values() for name in TEMPLATE.findall(value))}
        return configured, secrets.secrets_of(conn, delivery.revision_id, names)


def _filled(header: str, value: str, variables: dict[str, str]) -> str:
    missing = set(TEMPLATE.findall(value)) - variables.keys()
    if missing:
        raise OutsideFailed(f"the header {header} needs the variable {min(missing)}")
    filled = TEMPLATE.sub(lambda match: variables[match[1]], value)
    if not filled.isascii() or not filled.isprintable():
        raise OutsideFailed(f"the header {header} would hold characters that no header may hold")
    return filled


def sign(secret: str, id: str, timestamp: str, body: bytes) -> str:
    """Return the HMAC-SHA256 signature of `id.timestamp.body` as the Standard Webhooks convention defines it."""
    signed = f"{id}.{timestamp}.".encode() + body
    digest = hmac.digest(_key(secret), signed, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def _secrets(variable: str) -> list[str]:
    """Split the variable at spaces if each part begins with `whsec_`; any other text is one secret.

    Several secrets are used while one replaces another.
    """
    parts = variable.split()
    return parts if all(part.startswith(SECRET_PREFIX) for part in parts) else [variable]


def _key(secret: str) -> bytes:
    if secret.startswith(SECRET_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            return secret.encode()
    return secret.encode()


def _line(delivery: Delivery, failure: str, is_retried: bool) -> Line:
    """Return the line for the deployment's log. It omits the receiver's URL, which may contain a token."""
    follows = "" if is_retried else "; it was the last one"
    message = f"webhook {delivery.delivery_id}: attempt {delivery.attempt} failed: {failure}{follows}"
    level = "WARNING" if is_retried else "ERROR"
    return Line(
        delivery.deployment_id,
        delivery.revision_id,
        logs.DEPLOY,
        datetime.now(UTC),
        level,
        message,
        delivery.run_id,
    )
