"""Questions of graphs to people, and links that let a person without an account answer one question."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, Table, Text, Uuid, text

from shared.models.base import METADATA, NOW, TIME, column, thread_key

# An interrupt of a thread, or a breakpoint at which it stopped. A trigger on `thread` inserts and closes the rows; see
# shared/sql/inbox.sql. A question is open while `closed_at` is NULL. If a thread asks again after an answer, it gets a
# new row.
QUESTION = Table(
    "question",
    METADATA,
    column("question_id", Uuid, primary_key=True),
    column("deployment_id", Uuid),
    column("thread_id", Uuid),
    column("interrupt_id", Text),  # of a breakpoint: `breakpoint`
    column("kind", Text),  # interrupt or breakpoint
    column("value", JSON(none_as_null=True), nullable=True),  # of a breakpoint: the names of the next nodes
    column("title", Text),  # the thread's title when the question was asked
    column("run_id", Uuid, nullable=True),  # the run that asked
    column("assistant_id", Uuid, nullable=True),
    column("asked_by", Text, nullable=True),  # the user or the API key that started the run
    column("asked_at", TIME, server_default=NOW),
    column("closed_at", TIME, nullable=True),
    column("assignee", Text, nullable=True),
    column("snoozed_until", TIME, nullable=True),
    # the answer, and the run that carries it; `answered_from` is a client address or the id of a link
    column("answer", JSON(none_as_null=True), nullable=True),
    column("answered_at", TIME, nullable=True),
    column("answered_by", Text, nullable=True),
    column("answered_from", Text, nullable=True),
    column("answer_run_id", Uuid, nullable=True),
    # rules of the deployment when the question was asked; see shared/inbox
    column("webhook_due_at", TIME, nullable=True),  # the next webhook: the announcement, then reminders
    column("webhooks_sent", BigInteger, server_default="0"),
    column("expires_at", TIME, nullable=True),
    column("on_expiry", JSON(none_as_null=True), nullable=True),
    column("expired_at", TIME, nullable=True),  # the action of `on_expiry` was carried out
    thread_key(),
    Index(
        "uq_question_open",
        "deployment_id",
        "thread_id",
        "interrupt_id",
        unique=True,
        postgresql_where=text("closed_at IS NULL"),
    ),
    Index("ix_question_thread", "deployment_id", "thread_id", "interrupt_id", "asked_at"),
    Index("ix_question_run_id", "run_id", "asked_at"),
    Index("ix_question_asked_at", "deployment_id", "asked_at"),
    Index("ix_question_open", "deployment_id", "asked_at", postgresql_where=text("closed_at IS NULL")),
    Index("ix_question_closed", "deployment_id", "closed_at", postgresql_where=text("closed_at IS NOT NULL")),
    Index(
        "ix_question_webhook_due",
        "webhook_due_at",
        postgresql_where=text("closed_at IS NULL AND webhook_due_at IS NOT NULL"),
    ),
    Index(
        "ix_question_expires",
        "deployment_id",
        "expires_at",
        postgresql_where=text(
            "expires_at IS NOT NULL AND expired_at IS NULL AND (closed_at IS NULL OR answered_from = 'expiry')"
        ),
    ),
)


# A link for one answer. Only the SHA-256 of its token is stored.
QUESTION_LINK = Table(
    "question_link",
    METADATA,
    column("link_id", Uuid, primary_key=True),
    column("question_id", Uuid, ForeignKey("question.question_id", ondelete="CASCADE")),
    column("token_hash", LargeBinary),
    column("label", Text, nullable=True),  # the recipient, as the link's creator wrote
    column("created_by", Text),
    column("created_at", TIME, server_default=NOW),
    column("expires_at", TIME),
    column("revoked_at", TIME, nullable=True),
    column("used_at", TIME, nullable=True),
    Index("uq_question_link_token_hash", "token_hash", unique=True),
    Index("ix_question_link_question_id", "question_id"),
)
