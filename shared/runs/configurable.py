"""What a run's `configurable` holds, whose value of a key counts, and what its thread keeps of it.

Later lines hold:

1. DEFAULTS: what the service says only where nobody else does. `user_id` names whom a caller acts for, by the
   caller's own account; it proves nothing. Where the deployment's authorization found somebody, it is that user.
2. What the assistant has there, and the run's own over it, each key as a whole.
3. The run's identity: its ids, and who asked for it, whatever was written there.
4. What the run's maker adds: a cron's id.
5. The checkpoint to start from.

Keys that begin with AUTH say who a caller was found to be. They are the service's alone, in `context` too. Those that
begin with LIBRARY are the graph library's among graphs that call each other: with them a caller could have a run keep
nothing, or take its input for an answer. Clients inside of a graph send them along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from shared.infra import tracing

AUTH = "langgraph_auth_"
LIBRARY = "__pregel_"
DEFAULTS: Mapping[str, Any] = {"user_id": ""}
IDS = ("run_id", "thread_id", "assistant_id")  # what nobody names but the service, in metadata too
CHECKPOINT_KEYS = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")  # what addresses a checkpoint


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What identifies a run, and who asked for it."""

    run_id: str
    thread_id: str
    graph_id: str
    assistant_id: str
    langgraph_auth_user: Mapping[str, Any] | None = None
    langgraph_auth_user_id: str = ""
    langgraph_auth_permissions: Sequence[str] = ()
    langgraph_request_id: str


# Who asked for a run or a question when nobody was asked who it is.
NOBODY: Mapping[str, Any] = {
    field.name: field.default for field in fields(RunIdentity) if field.name.startswith(AUTH)
}


def of_user(user: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What AUTH keys say of a user, by the document that the deployment's authorization gave; None: nobody was asked."""
    if user is None:
        return NOBODY
    return {
        "langgraph_auth_user": user,
        "langgraph_auth_user_id": user["identity"],
        "langgraph_auth_permissions": user["permissions"],
    }


# What a run has of its own there, and no other run made like it takes over.
OWN = frozenset({*DEFAULTS, *(field.name for field in fields(RunIdentity)), *CHECKPOINT_KEYS, *tracing.KEYS})


def given(entries: Mapping[str, Any]) -> dict[str, Any]:
    """What an assistant or a caller has set, without what only the service or the graph library may say."""
    return {name: value for name, value in entries.items() if not name.startswith((AUTH, LIBRARY))}


def of_run(
    entries: Mapping[str, Any],
    identity: RunIdentity,
    extras: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
) -> dict[str, Any]:
    """The `configurable` of a run; `entries` are the assistant's and the run's, as `given` leaves them."""
    return {**_defaults(vars(identity)), **entries, **vars(identity), **extras, **checkpoint}


def _defaults(auth: Mapping[str, Any]) -> dict[str, Any]:
    return {**DEFAULTS, "user_id": auth["langgraph_auth_user_id"]}


def of_thread(assistants: Mapping[str, Any], runs: Mapping[str, Any]) -> dict[str, Any]:
    """What a thread keeps of its newest run's config, and its assistant's: of `configurable` the assistant's alone.

    With it the thread's graph is made again where its state is read or updated.
    """
    kept = {**assistants, **runs, "configurable": given(assistants.get("configurable", {}))}
    metadata = {key: value for key, value in kept.pop("metadata", {}).items() if key not in IDS}
    return {**kept, "metadata": metadata} if metadata else kept


def of_question(
    config: Mapping[str, Any], user: Mapping[str, Any] | None = None, **ids: Any
) -> dict[str, Any]:
    """The config a graph is made with to read or update a thread's state: the thread's, as a run would get it."""
    entries, auth = config.get("configurable", {}), of_user(user)
    return {**config, "configurable": {**_defaults(auth), **entries, **ids, **auth}}
