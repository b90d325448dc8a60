"""Add people who sign in, their sessions, their requests for keys, and the creators of API keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0105"
down_revision = "0101"

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("api_key", sa.Column("created_by", sa.Text(), nullable=True), if_not_exists=True)
    op.create_table(
        "account",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("signed_in_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_account")),
        if_not_exists=True,
    )
    op.create_table(
        "session",
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("id_token", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("used_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
        *_owners("session"),
        if_not_exists=True,
    )
    op.create_table(
        "device_login",
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("user_code_hash", sa.LargeBinary(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("polled_at", TIME, nullable=True),
        sa.Column("interval_seconds", sa.BigInteger(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=True),
        sa.Column("organization_id", sa.Uuid(), nullable=True),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("denied_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_login")),
        *_owners("device_login"),
        if_not_exists=True,
    )
    for table, column, is_unique in (
        ("account", "signed_in_at", False),
        ("session", "account_id", False),
        ("session", "organization_id", False),
        ("session", "expires_at", False),
        ("device_login", "user_code_hash", True),
        ("device_login", "expires_at", False),
        ("device_login", "address", False),
        ("device_login", "account_id", False),
        ("device_login", "organization_id", False),
    ):
        name = f"{'uq' if is_unique else 'ix'}_{table}_{column}"
        op.create_index(name, table, [column], unique=is_unique, if_not_exists=True)


def _owners(table: str) -> list[sa.ForeignKeyConstraint]:
    """Return the foreign keys to the account and the organization."""
    return [
        sa.ForeignKeyConstraint(
            [f"{owner}_id"], [f"{owner}.id"], name=op.f(f"fk_{table}_{owner}_id"), ondelete="CASCADE"
        )
        for owner in ("account", "organization")
    ]
