"""The `requestState` of an MCP call that waits for answers: sealed, so that a client can return it but not change it.

It names the run that asked, so a state cannot be used again after the thread has continued: the thread is locked when
the state is compared with it.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

import orjson

from shared.errors import Refused
from shared.infra import sealed
from shared.infra.postgres import dumps
from shared.infra.sealed import InvalidSeal

PURPOSE = "mcp.request_state"
LIFETIME_SECONDS = 3600.0


class InvalidState(Refused):
    """requestState: it was not issued for this call, has expired, or was used already"""


@dataclass(frozen=True, kw_only=True)
class CallIdentity:
    """Properties of a call that a retry with its state must share."""

    deployment_id: UUID
    assistant_id: UUID
    caller: str
    digest: str

    @classmethod
    def of(
        cls, deployment_id: UUID, assistant_id: UUID, caller: str, name: str, arguments: Any
    ) -> CallIdentity:
        sent = orjson.dumps([name, orjson.loads(dumps(arguments))], option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(sent).hexdigest()
        return cls(deployment_id=deployment_id, assistant_id=assistant_id, caller=caller, digest=digest)


@dataclass(frozen=True, kw_only=True)
class RequestState:
    """A call that waits on its thread. `run` is the number of the run that asked (`thread.last_seq`)."""

    thread_id: UUID
    run: int
    answers: dict[str, Any] = field(default_factory=dict)  # responses that the client sent so far

    def seal(self, identity: CallIdentity) -> str:
        """Return the text for the client. Raises Unavailable without encryption keys."""
        content = {"identity": asdict(identity), **asdict(self)}
        return sealed.seal(PURPOSE, content, seconds=LIFETIME_SECONDS)

    @classmethod
    def unseal(cls, text: str, identity: CallIdentity) -> RequestState:
        """Return the state that a client sends back. Raises InvalidState."""
        try:
            content = sealed.unseal(PURPOSE, text)
        except InvalidSeal:
            raise InvalidState from None
        if content["identity"] != orjson.loads(dumps(asdict(identity))):
            raise InvalidState
        return cls(thread_id=UUID(content["thread_id"]), run=content["run"], answers=content["answers"])
