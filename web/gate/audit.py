"""Entries of the audit log for the caller's requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared import audit
from shared.access import api_keys
from shared.audit import Action, Actor
from web.gate.addresses import client_address
from web.gate.context import caller, settings

INSTALLATION = ("organization", "worker")  # kinds of actions that operators do, in the default organization


def actor(conn: Connection) -> Actor:
    """Return the caller as the actor of changes."""
    return Actor(caller().key_id, api_keys.caller_name(conn, caller()), client_address(settings()))


def record_action(
    conn: Connection, action: Action, subject: str, *, deployment_id: UUID | None = None, **detail: Any
) -> None:
    """Record a change by the caller, in the transaction that makes it."""
    is_of_installation = action.partition(".")[0] in INSTALLATION
    audit.add(
        conn,
        api_keys.DEFAULT_ORGANIZATION_ID if is_of_installation else caller().organization_id,
        action,
        subject,
        by=actor(conn),
        deployment_id=deployment_id,
        **detail,
    )
