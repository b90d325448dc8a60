"""How long a thread of a deployment lives that nobody has given a time: what the serving revision's project says.

It is written to the thread when it is made, so that another revision changes nothing of the threads there are.
"""

from __future__ import annotations

_CONFIGURED = """(SELECT revision.manifest -> 'checkpointer' -> 'ttl' ->> '{key}'
    FROM deployment JOIN revision ON revision.id = deployment.active_revision_id
    WHERE deployment.id = {deployment_id})"""


def default_minutes(deployment_id: str) -> str:
    """SQL of a new thread's minutes; `deployment_id` is SQL too. NULL: for ever."""
    return f"CAST({_CONFIGURED.format(key='default_ttl', deployment_id=deployment_id)} AS double precision)"


def default_strategy(deployment_id: str) -> str:
    """SQL of what becomes of it then, `delete` or `keep_latest`; NULL: nobody has said."""
    return _CONFIGURED.format(key="strategy", deployment_id=deployment_id)
