"""Alembic's entry: each version in a transaction of its own, on the connection that shared.migrations hands over."""

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
