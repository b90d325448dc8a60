"""Changes of tables that are in use, made without keeping anybody from writing to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alembic import op

# An index waits for transactions that began before it; one that never ends must not make it wait for ever.
WAIT, AS_BEFORE = (
    "SET lock_timeout = '60s'; SET statement_timeout = 0",
    "RESET lock_timeout; RESET statement_timeout",
)


def create_index(name: str, table: str, columns: Sequence[Any], **options: Any) -> None:
    """Create an index while rows are written; what an interrupted attempt left of it is made anew.

    Each is a transaction of its own, so that its migration may be carried out again from its beginning: all else
    in it says `if_not_exists` or `if_exists`.
    """
    with op.get_context().autocommit_block():
        op.execute(WAIT)
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)
        op.create_index(name, table, columns, postgresql_concurrently=True, **options)
        op.execute(AS_BEFORE)


def drop_index(name: str, table: str) -> None:
    """Drop an index while rows are written."""
    with op.get_context().autocommit_block():
        op.execute(WAIT)
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)
        op.execute(AS_BEFORE)
