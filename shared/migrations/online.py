"""Schema changes that do not block writes to the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from alembic import context, op

# CREATE INDEX CONCURRENTLY waits for older transactions. The timeout ends the wait for one that does not end.
WAIT, AS_BEFORE = (
    "SET lock_timeout = '60s'; SET statement_timeout = 0",
    "RESET lock_timeout; RESET statement_timeout",
)
IN_CALLERS_TRANSACTION = "in_callers_transaction"  # attribute of Alembic's configuration


def create_index(name: str, table: str, columns: Sequence[Any], **options: Any) -> None:
    """Create an index while rows are written. Replaces the invalid index of an interrupted attempt.

    Runs outside the migration's transaction. A failed migration is executed again from its beginning, so all its other
    operations must use `if_not_exists` or `if_exists`.
    """
    with _beside_writers() as concurrently:
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=concurrently)
        op.create_index(name, table, columns, postgresql_concurrently=concurrently, **options)


def drop_index(name: str, table: str) -> None:
    """Drop an index while rows are written."""
    with _beside_writers() as concurrently:
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=concurrently)


@contextmanager
def _beside_writers() -> Iterator[bool]:
    """Leave the migration's transaction for the block. Yields whether an index can be changed concurrently.

    In a transaction of the caller (`migrations.upgrade_in_transaction`) it cannot, but no other process writes to the
    tables then.
    """
    if context.config.attributes[IN_CALLERS_TRANSACTION]:
        yield False
        return
    with op.get_context().autocommit_block():
        op.execute(WAIT)
        yield True
        op.execute(AS_BEFORE)
