"""Alembic's entry point: applies each version in a separate transaction, on the connection from shared.migrations.

The transaction of the newest version also installs the views and functions of shared/sql.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo

from shared import sql
from shared.infra import database_version
from shared.migrations import is_compared
from shared.models import METADATA


def install_with_newest(
    ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Mapping[str, Any]
) -> None:
    """Install views and functions after the newest version. They may need columns that an older one does not have."""
    if ctx.connection is not None and step.up_revision_id == database_version.needed():
        sql.install(ctx.connection)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    include_object=is_compared,
    compare_type=True,
    compare_server_default=False,
    transaction_per_migration=True,
    on_version_apply=install_with_newest,
)
with context.begin_transaction():
    context.run_migrations()
