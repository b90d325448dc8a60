"""Add questions to people, the links that answer them, and the rules of a deployment for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0101"
down_revision = "0100"

OPEN, CLOSED = sa.text("closed_at IS NULL"), sa.text("closed_at IS NOT NULL")
TO_EXPIRE = sa.text(
    "expires_at IS NOT NULL AND expired_at IS NULL AND (closed_at IS NULL OR answered_from = 'expiry')"
)
THREAD = ["deployment_id", "thread_id"]


def upgrade() -> None:
    op.add_column(
        "deployment",
        sa.Column("inbox", postgresql.JSONB(none_as_null=True), nullable=True),
        if_not_exists=True,
    )
    op.create_table(
        "question",
        sa.Column("question_id", sa.Uuid(), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("interrupt_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("assistant_id", sa.Uuid(), nullable=True),
        sa.Column("asked_by", sa.Text(), nullable=True),
        sa.Column("asked_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("assignee", sa.Text(), nullable=True),
        sa.Column("snoozed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answer", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answered_by", sa.Text(), nullable=True),
        sa.Column("answered_from", sa.Text(), nullable=True),
        sa.Column("answer_run_id", sa.Uuid(), nullable=True),
        sa.Column("webhook_due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("webhooks_sent", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("on_expiry", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("expired_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("question_id", name=op.f("pk_question")),
        sa.ForeignKeyConstraint(
            THREAD,
            ["thread.deployment_id", "thread.thread_id"],
            name=op.f("fk_question_deployment_id_thread_id"),
            ondelete="CASCADE",
        ),
        if_not_exists=True,
    )
    for name, columns, options in (
        ("uq_question_open", [*THREAD, "interrupt_id"], {"unique": True, "postgresql_where": OPEN}),
        ("ix_question_thread", [*THREAD, "asked_at"], {}),
        ("ix_question_asked_at", ["deployment_id", "asked_at"], {}),
        ("ix_question_open", ["deployment_id", "asked_at"], {"postgresql_where": OPEN}),
        ("ix_question_closed", ["deployment_id", "closed_at"], {"postgresql_where": CLOSED}),
        (
            "ix_question_webhook_due",
            ["webhook_due_at"],
            {"postgresql_where": sa.text("closed_at IS NULL AND webhook_due_at IS NOT NULL")},
        ),
        (
            "ix_question_expires",
            ["expires_at"],
            {"postgresql_where": TO_EXPIRE},
        ),
    ):
        op.create_index(name, "question", columns, if_not_exists=True, **options)
    op.create_table(
        "question_link",
        sa.Column("link_id", sa.Uuid(), nullable=False),
        sa.Column("question_id", sa.Uuid(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("link_id", name=op.f("pk_question_link")),
        sa.ForeignKeyConstraint(
            ["question_id"],
            ["question.question_id"],
            name=op.f("fk_question_link_question_id"),
            ondelete="CASCADE",
        ),
        if_not_exists=True,
    )
    op.create_index(
        "uq_question_link_token_hash", "question_link", ["token_hash"], unique=True, if_not_exists=True
    )
    op.create_index("ix_question_link_question_id", "question_link", ["question_id"], if_not_exists=True)
