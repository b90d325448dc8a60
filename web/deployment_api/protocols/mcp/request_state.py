"""The `requestState` of an MCP call that waits for answers: sealed, so that a client can return it but not change it.

It is encrypted and authenticated with the operator's keys. It names the run that asked, so a state cannot be used again
after the thread has continued: the thread is locked when the state is compared with it.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

import orjson

from shared.errors import Refused
from shared.infra import encryption
from shared.infra.encryption import Undecryptable
from shared.infra.postgres import database_seconds, dumps

PURPOSE = "mcp.request_state"  # other values that are encrypted with the same keys are no request state
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
        expires_at = database_seconds() + LIFETIME_SECONDS
        content = {"purpose": PURPOSE, "expires_at": expires_at, **asdict(identity), **asdict(self)}
        return encryption.encrypt(dumps(content)).decode()

    @classmethod
    def unseal(cls, sealed: str, identity: CallIdentity) -> RequestState:
        """Return the state that a client sends back. Raises InvalidState."""
        if not _is_canonical(sealed):
            raise InvalidState
        try:
            content = orjson.loads(encryption.decrypt(sealed.encode()))
        except (Undecryptable, orjson.JSONDecodeError):
            raise InvalidState from None
        expected = {"purpose": PURPOSE, **orjson.loads(dumps(asdict(identity)))}
        if not isinstance(content, dict) or any(content.get(name) != expected[name] for name in expected):
            raise InvalidState
        if content["expires_at"] < database_seconds():
            raise InvalidState
        return cls(thread_id=UUID(content["thread_id"]), run=content["run"], answers=content["answers"])


def _is_canonical(sealed: str) -> bool:
    """Return whether the text is exactly what `seal` writes. Decoders of base64 ignore what follows the padding."""
    try:
        return urlsafe_b64encode(urlsafe_b64decode(sealed)).decode() == sealed
    except ValueError:
        return False
