"""Default time to live of a deployment's threads, from the project of the active revision.

It is stored with the thread at its creation, so a later revision does not change existing threads.
"""

from __future__ import annotations

STRATEGIES = ("delete", "keep_latest")  # what happens to a thread at the end of its time to live

_CONFIGURED = """(SELECT revision.manifest -> 'checkpointer' -> 'ttl' ->> '{key}'
    FROM deployment JOIN revision ON revision.id = deployment.active_revision_id
    WHERE deployment.id = {deployment_id})"""


def default_minutes(deployment_id: str) -> str:
    """Return SQL for a new thread's time to live in minutes. NULL means unlimited. `deployment_id` is SQL, too."""
    return f"CAST({_CONFIGURED.format(key='default_ttl', deployment_id=deployment_id)} AS double precision)"


def default_strategy(deployment_id: str) -> str:
    """Return SQL for the action at the end of the time to live: `delete`, `keep_latest`, or NULL if not configured."""
    return _CONFIGURED.format(key="strategy", deployment_id=deployment_id)
