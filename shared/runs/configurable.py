"""The `configurable` of a run: its entries, their precedence, and the part that the thread stores.

Later items override earlier ones:

1. DEFAULTS: values for keys that no other item sets. The default of `user_id` is the user that the deployment's
   authorization returned. A caller may set `user_id` to any value, so it does not authenticate anyone.
2. The entries of the assistant, then those of the run. An entry is replaced as a whole, not merged.
3. The run's identity: its ids and its authenticated user.
4. Entries added by the creator of the run, such as the id of a cron.
5. The checkpoint to start from.

Keys that begin with AUTH describe the authenticated user. Only the service sets them, also in `context`. Keys that
begin with LIBRARY are internal to the graph library, for graphs that call each other. Clients inside a graph send them
along. They are removed: with them a caller could keep a run from storing checkpoints, or make it treat its input as the
answer to an interrupt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from shared.infra import trace_context
from shared.infra.postgres import Row

AUTH = "langgraph_auth_"
LIBRARY = "__pregel_"
DEFAULTS: Mapping[str, Any] = {"user_id": ""}
IDS = ("run_id", "thread_id", "assistant_id")  # set only by the service, also in metadata
CHECKPOINT_KEYS = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")  # the address of a checkpoint


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """The ids of a run, and its authenticated user."""

    run_id: str
    thread_id: str
    graph_id: str
    assistant_id: str
    langgraph_auth_user: Mapping[str, Any] | None = None
    langgraph_auth_user_id: str = ""
    langgraph_auth_permissions: Sequence[str] = ()
    langgraph_request_id: str


# The AUTH entries of a caller that no user code has authenticated.
ANONYMOUS: Mapping[str, Any] = {
    field.name: field.default for field in fields(RunIdentity) if field.name.startswith(AUTH)
}


def user_of(run: Row) -> Mapping[str, Any] | None:
    """Return the user document of a stored run, or None if no user code was called."""
    user: Mapping[str, Any] | None = (
        run["kwargs"]["config"].get("configurable", {}).get("langgraph_auth_user")
    )
    return user


def of_user(user: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the AUTH entries for a user document of the deployment's authorization. None: no user code was called."""
    if user is None:
        return ANONYMOUS
    return {
        "langgraph_auth_user": user,
        "langgraph_auth_user_id": user["identity"],
        "langgraph_auth_permissions": user["permissions"],
    }


# Entries that belong to one run: a retry of the run does not copy them.
RUN_ENTRIES = frozenset(
    {*DEFAULTS, *(field.name for field in fields(RunIdentity)), *CHECKPOINT_KEYS, *trace_context.KEYS}
)


def without_reserved_keys(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries without the keys that only the service or the graph library may set."""
    return {name: value for name, value in entries.items() if not name.startswith((AUTH, LIBRARY))}


def of_run(
    entries: Mapping[str, Any],
    identity: RunIdentity,
    extras: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the `configurable` of a run. `entries` are those of assistant and run, filtered by `without_reserved_keys`."""
    return {**_defaults(vars(identity)), **entries, **vars(identity), **extras, **checkpoint}


def _defaults(auth: Mapping[str, Any]) -> dict[str, Any]:
    """Return DEFAULTS with the user of these AUTH entries."""
    return {**DEFAULTS, "user_id": auth["langgraph_auth_user_id"]}


def of_thread(assistant_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that a thread stores: the newest run's over the assistant's, but the assistant's `configurable`.

    The thread's graph is built with this config when the thread's state is read or updated.
    """
    entries = without_reserved_keys(assistant_config.get("configurable", {}))
    kept = {**assistant_config, **run_config, "configurable": entries}
    metadata = {key: value for key, value in kept.pop("metadata", {}).items() if key not in IDS}
    return {**kept, "metadata": metadata} if metadata else kept


def config_for_state(
    config: Mapping[str, Any], user: Mapping[str, Any] | None = None, **ids: Any
) -> dict[str, Any]:
    """Return the config to build a graph with for reading or updating a thread's state.

    `config` is the config stored on the thread. Adds defaults, ids and AUTH entries like `of_run`.
    """
    entries, auth = config.get("configurable", {}), of_user(user)
    return {**config, "configurable": {**_defaults(auth), **entries, **ids, **auth}}
