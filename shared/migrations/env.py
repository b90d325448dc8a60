"""Alembic's entry point: applies each version in a separate transaction, on the connection from shared.migrations."""

from __future__ import annotations

from alembic import context

from shared.migrations import is_compared
from shared.models import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    include_object=is_compared,
    compare_type=True,
    compare_server_default=False,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
