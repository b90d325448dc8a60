"""The context of commands that arrive over a WebSocket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import UUID

from flask import Flask, current_app

from shared.access.api_keys import Caller
from shared.errors import Forbidden, NotFound
from shared.infra import logs
from shared.user_code.users import User
from web.gate import deployments
from web.gate.context import Authorization, RequestContext, caller, context, deployment, publish


@dataclass(frozen=True, slots=True)
class SocketContext:
    """The context of the request that opened a socket, kept for the commands that arrive over the socket.

    It does not keep the DeploymentRef: thousands of idle sockets would each keep a parsed `http` section.
    """

    app: Flask
    caller: Caller
    user: User | None
    request_id: str
    deployment_id: UUID
    deployment_name: str
    run_headers: dict[str, str]

    @classmethod
    def of_request(cls) -> SocketContext:
        """Return the socket context of the current request."""
        opening, serving = context(), deployment()
        return cls(
            app=current_app._get_current_object(),  # type: ignore[attr-defined]
            caller=caller(),
            user=opening.user,
            request_id=opening.request_id,
            deployment_id=serving.id,
            deployment_name=serving.address_name,
            run_headers=opening.run_headers,
        )

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this the context of the current greenlet, to handle a message. It has no deployment yet."""
        with self.app.app_context(), logs.bound(request_id=self.request_id):
            publish(
                RequestContext(
                    request_id=self.request_id,
                    caller=self.caller,
                    user=self.user,
                    run_headers=self.run_headers,
                )
            )
            yield

    def resolve_deployment(self) -> None:
        """Look the deployment up again, for one command within `activate`.

        Raises NotFound if it is gone, and Forbidden if the name now means another deployment, or if authorization was
        switched on or off.
        """
        serving = deployments.of_organization(self.caller.organization_id, self.deployment_name)
        if serving is None:
            raise NotFound("Not Found")
        has_auth = serving.user_code.auth is not None
        if serving.id != self.deployment_id or has_auth != (self.user is not None):
            raise Forbidden("The deployment or its authorization has changed: connect again")
        publish(replace(context(), authorization=Authorization(serving)))
