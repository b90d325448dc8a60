"""What a run's `configurable` holds, and whose value of a key counts.

Later lines hold:

1. DEFAULTS: what the service says only where nobody else does. `user_id` names whom a caller acts for, by the
   caller's own account; it proves nothing.
2. What the assistant has there, and the run's own over it, each key as a whole.
3. The run's identity: its ids, and who asked for it, whatever was written there.
4. What the run's maker adds: a cron's id.
5. The checkpoint to start from.

Keys that begin with AUTH say who a caller was found to be. They are the service's alone, in `context` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

AUTH = "langgraph_auth_"
DEFAULTS: Mapping[str, Any] = {"user_id": ""}
PLACE = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")  # what addresses a checkpoint


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What identifies a run, and who asked for it."""

    run_id: str
    thread_id: str
    graph_id: str
    assistant_id: str
    langgraph_auth_user: None = None
    langgraph_auth_user_id: str = ""
    langgraph_auth_permissions: Sequence[str] = ()
    langgraph_request_id: str


# What a run has of its own there, and no other run made like it takes over.
OWN = frozenset({*DEFAULTS, *(field.name for field in fields(RunIdentity)), *PLACE})


def given(entries: Mapping[str, Any]) -> dict[str, Any]:
    """What an assistant or a caller has set, without what only the service may say."""
    return {name: value for name, value in entries.items() if not name.startswith(AUTH)}


def of_run(
    entries: Mapping[str, Any], identity: RunIdentity, extras: Mapping[str, Any], place: Mapping[str, Any]
) -> dict[str, Any]:
    """The `configurable` of a run; `entries` are the assistant's and the run's, as `given` leaves them."""
    return {**DEFAULTS, **entries, **vars(identity), **extras, **place}
