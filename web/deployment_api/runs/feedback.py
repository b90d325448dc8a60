"""Feedback on runs: read and set by callers, and sent by anyone to a feedback URL of a run.

A feedback URL needs no key, and the deployment's own `auth` is not called for it. A GET of it stores nothing: mail
programs and chats open the links in messages for previews. It returns a page with a button that sends the feedback.
"""

from __future__ import annotations

import html
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from flask import Response, jsonify, request

from shared.deployments.deployments import PREVIEW_SIGN
from shared.errors import Gone, Invalid, NotFound
from shared.infra.postgres import connection
from shared.runs import feedback, read
from shared.user_code import filters
from web.deployment_api.runs.joins import thread_of
from web.gate import deployments, limits
from web.gate.context import address, allow, caller, deployment
from web.http import pages
from web.schemas.feedback import MAX_COMMENT, Feedback, FeedbackText, KeyedFeedback
from web.schemas.operations import RouteGroup
from web.schemas.validation import checked, load, load_query, raw_body

bp = RouteGroup("feedback", section="Runs", switches=("disable_runs",))

FORM = "application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 100
QUESTION = """<form method="post" action="{action}">
<p><strong>{key}</strong> {content}</p>
{hidden}
<p><label>Comment<br><textarea name="comment" rows="5" cols="50" maxlength="{most}">{comment}</textarea></label></p>
<p><button type="submit">Send</button></p>
</form>"""
NOT_SENT = "Feedback not sent"


@bp.with_and_without_thread(
    "GET /runs/<run_id>/feedback",
    "List the feedback on a run, oldest first",
    "List the feedback on a run without a thread, oldest first",
    role="read",
    answer=feedback.RECORD.schema,
    many=True,
    errors=(404,),
)
def list_feedback(thread_id: UUID | None, run_id: UUID) -> Response:
    """List all records. A run has at most 100. The handler of `threads.read` decides."""
    _require_run(thread_id, run_id, "read")
    with connection() as conn:
        return jsonify([feedback.RECORD.show(row) for row in feedback.list_of_run(conn, run_id)])


@bp.with_and_without_thread(
    "POST /runs/<run_id>/feedback",
    "Set the caller's feedback on a run",
    "Set the caller's feedback on a run without a thread",
    role="run",
    body=KeyedFeedback,
    answer=feedback.RECORD.schema,
    errors=(404, 409),
)
def set_feedback(thread_id: UUID | None, run_id: UUID, body: dict[str, Any]) -> Response:
    """Store feedback under a key. It replaces the caller's earlier feedback under this key.

    Returns 409 if the run has 100 records. The handler of `threads.update` decides.
    """
    _require_run(thread_id, run_id, "update")
    with connection() as conn:
        row = feedback.put(conn, deployment().id, run_id, body["key"], caller().key_id, body)
    return jsonify(feedback.RECORD.show(row))


def _require_run(thread_id: UUID | None, run_id: UUID, action: str) -> None:
    """Raise NotFound if the run is missing or hidden, and Denied if the caller may not do this on its thread."""
    granted = allow("threads", action, thread_id=thread_of(run_id) if thread_id is None else thread_id)
    missing = NotFound("Not Found")
    with connection() as conn:
        row = read.get(conn, deployment().id, run_id, thread_id=thread_id)
        filters.require_thread(conn, deployment().id, row["thread_id"], granted.filter, error=missing)


# Feedback URLs


@bp.operation(
    "POST /feedback/<token>",
    "Send feedback to a feedback URL",
    role="open",
    body=Feedback,
    answer=feedback.RECORD.schema,
    errors=(404, 409, 410, 413, 429),
)
def send_feedback(token: str) -> Response:
    """Store feedback on the run and key of the URL. It replaces what was sent to a URL of this run and key before.

    Also accepts the fields `score`, `value` and `comment` of an HTML form, and returns a page then. Returns 410 if the URL
    has expired, or its run is deleted.
    """
    return pages.for_browser(lambda: _send(token), NOT_SENT)


def _send(token: str) -> Response:
    is_form = request.mimetype == FORM
    with limits.open_to_anyone():
        content = _form() if is_form else load(Feedback)
        target = _target(token)
    with connection() as conn:
        row = feedback.put_by_token(conn, target, content)
    if is_form:
        return pages.page("Thank you", "The feedback is stored. You can close this page.")
    return jsonify(feedback.RECORD.show(row))


@bp.operation(
    "GET /feedback/<token>",
    "Get a page that sends feedback to a feedback URL",
    role="open",
    query=FeedbackText,
    media=("text/html",),
    errors=(404, 410, 429),
)
def show_feedback_page(token: str) -> Response:
    """Return a page with a button that sends the `score`, `value` and `comment` of the query. Stores nothing itself.

    Errors are returned as a page to browsers, and as JSON to other clients.
    """
    return pages.for_browser(lambda: _question(token), NOT_SENT)


def _question(token: str) -> Response:
    with limits.open_to_anyone():
        content = load_query(FeedbackText, refuse_repeated=True)
        target = _target(token)
    with connection() as conn:
        feedback.require_run(conn, target)
    fixed = {name: request.args[name] for name in ("score", "value") if name in content}
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{html.escape(value)}">' for name, value in fixed.items()
    )
    question = QUESTION.format(
        action=token,
        key=html.escape(target.key),
        content=html.escape(", ".join(fixed.values())),
        hidden=hidden,
        comment=html.escape(content.get("comment", "")),
        most=MAX_COMMENT,
    )
    return pages.html_page("Send this feedback?", question, has_form=True)


def _target(token: str) -> feedback.Target:
    """Return the target of a token of the addressed deployment. Raises NotFound for another token, and Gone.

    The token determines the deployment: several organizations may have one of the name in the address.
    """
    target = feedback.target_of(token)
    served = deployments.by_id(target.deployment_id)
    if served is None:
        raise Gone(feedback.RUN_DELETED)
    name = address().name or ""
    if served.name not in (name, name.rpartition(PREVIEW_SIGN)[0]):
        raise NotFound(feedback.UNKNOWN)
    return target


def _form() -> dict[str, Any]:
    """Return the checked fields of a form. Empty ones are left out."""
    try:
        fields = parse_qsl(raw_body().decode(errors="replace"), max_num_fields=MAX_FORM_FIELDS)
    except ValueError as error:
        raise Invalid(f"the form has more than {MAX_FORM_FIELDS} fields", kind="too_long") from error
    return checked(FeedbackText, dict(fields), "body")
