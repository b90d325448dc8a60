"""Threads that wait for a person, and the rows of their questions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, driver, dumps
from shared.models import ThreadStatus
from shared.runs.drafts import RunRequest
from tests.support import factories, owning
from tests.support.creating import insert_run

INTERRUPTS = {"task": [{"id": "q", "value": {"question": "May I?"}}]}


def ask(
    deployment: DeploymentRef,
    interrupts: Any = INTERRUPTS,
    *,
    rules: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    **request: Any,
) -> UUID:
    """End a run of a new thread at these interrupts; None: at a breakpoint. Returns the id of the first question.

    `rules` become those of the deployment.
    """
    if rules is not None:
        set_rules(deployment, rules)
    thread_id = factories.thread(deployment.id, metadata={"title": "Refund", **(metadata or {})})
    with driver() as conn:
        created = insert_run(
            conn,
            deployment,
            RunRequest(**{"assistant_id": "agent", "input": {}, **request}),
            thread_id=thread_id,
            key_id="k",
            user=user,
        )
    (claimed,) = owning.claim(created.run_id)
    owning.finish(
        claimed,
        thread_status=ThreadStatus.INTERRUPTED,
        values="{}",
        interrupts=dumps(interrupts or {}),
        state=dumps(factories.state(thread_id, "c", next=["work"])),
    )
    with connection() as conn:
        query = text("SELECT question_id FROM question WHERE thread_id = :id ORDER BY interrupt_id LIMIT 1")
        return conn.execute(query, {"id": thread_id}).scalar_one()


def set_rules(deployment: DeploymentRef, rules: dict[str, Any] | None) -> None:
    with connection() as conn:
        conn.execute(
            text("UPDATE deployment SET inbox = CAST(:rules AS jsonb) WHERE id = :id"),
            {"rules": None if rules is None else dumps(rules), "id": deployment.id},
        )


def question(question_id: UUID) -> dict[str, Any]:
    with connection() as conn:
        query = text("SELECT * FROM question WHERE question_id = :id")
        return dict(conn.execute(query, {"id": question_id}).mappings().one())


def move(question_id: UUID, **times: str) -> None:
    """Set times of a question to SQL expressions."""
    changes = ", ".join(f"{name} = {sql}" for name, sql in times.items())
    with connection() as conn:
        conn.execute(text(f"UPDATE question SET {changes} WHERE question_id = :id"), {"id": question_id})


def deliveries() -> list[dict[str, Any]]:
    """Return the rows of the outbox, oldest first."""
    with connection() as conn:
        query = text("SELECT * FROM webhook_delivery ORDER BY created_at, delivery_id")
        return [dict(row) for row in conn.execute(query).mappings()]


def runs_of(question_id: UUID) -> list[dict[str, Any]]:
    """Return the runs of a question's thread, oldest first."""
    with connection() as conn:
        query = text(
            "SELECT r.* FROM run r JOIN question q USING (deployment_id, thread_id)"
            " WHERE q.question_id = :id ORDER BY r.created_seq"
        )
        return [dict(row) for row in conn.execute(query, {"id": question_id}).mappings()]
