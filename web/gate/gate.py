"""The gate: the one list of checks that every request passes, in order.

Address → deployment → the project's own route or a built-in one → caller → rate → role → stream slot. The result is
one `RequestContext`. Only this package writes to Flask's `g`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from flask import Flask, Response, request
from werkzeug.exceptions import NotFound

from shared.access.api_keys import Caller
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import set_patience
from shared.user_code.users import User
from web.gate import addresses, callers, deployments, limits, observation, routing
from web.gate.addresses import RequestAddress
from web.gate.context import Authorization, RequestContext, publish, settings
from web.gate.credentials import Credentials
from web.gate.forwarding import headers_for_runs
from web.gate.observation import Observation
from web.http import headers
from web.schemas import operations

ServeApp = Callable[[], Response]


def register(app: Flask, *, serve_app: ServeApp) -> None:
    """Let every request of the app pass the gate. `serve_app` answers requests for a project's own routes."""
    start(app)
    app.before_request(lambda: enter(serve_app))
    app.after_request(leave)
    app.teardown_request(release)


def start(app: Flask) -> None:
    """Start counting requests, streams and failures, from zero."""
    app.extensions["runyard_traffic"] = observation.Traffic()
    limits.start(app)


def enter(serve_app: ServeApp) -> Response | None:
    """Build the context of a request, or answer or refuse the request.

    The order is part of the contract: each step relies on those before it.
    """
    # The id and the clock come first: every response has an id, also one to a request that fails here.
    observed = observation.begin()
    address = addresses.locate()
    credentials = Credentials(settings(), is_for_deployment=address.name is not None)
    # A failed lookup is kept and raised by `authenticate`, so that callers without access learn nothing of it.
    address, lookup = routing.look_up(address, credentials)
    # Before the role is read: a route of the project may cover a built-in one that has another role.
    route = routing.choose(address, lookup)
    if route.is_app:
        credentials.drop_session()  # a session acts only for the console, never for a project's own routes
    address, deployment = route.address, lookup.deployment
    set_patience(operations.statement_seconds())
    http = deployment.http if deployment is not None else {}
    observed.select_headers(http)
    # Browsers send no key with a preflight request.
    if address.name is not None and headers.is_preflight():
        return headers.preflight(http)
    observed.start_span()
    publish_context = partial(_publish, observed, address, credentials)
    if route.is_app and not route.is_guarded:
        assert deployment is not None
        publish_context(caller=limits.anonymous_caller(deployment), deployment=deployment)
        return serve_app()
    # Before authentication: a public page needs no key, so a missing one answers 404 and never 401.
    if route.is_missing_page:
        raise NotFound
    if route.role == "open":
        if route.existing_name is not None:
            deployments.require_existing(route.existing_name)
        publish_context(deployment=deployment)
        return None
    # Before every refusal of a route: callers without access cannot find out which routes and deployments exist.
    caller, user = callers.authenticate(credentials, address, lookup, observed.request_id)
    # Refused calls count too. They take no stream slot: the slot follows the role.
    limits.count_request(caller)
    callers.require_role(caller, route.role)
    if deployment is not None and deployment.is_bench:
        caller = replace(caller, role="read")  # also for commands over a socket
    if operations.may_take_long():
        observed.slot.take(caller)
    if route.is_app:
        publish_context(caller=caller, user=user, deployment=deployment)
        return serve_app()
    redirect = routing.refuse_or_redirect(route)
    if redirect is not None:
        return redirect
    if address.name is not None and request.url_rule is not None:
        deployment = deployments.require_owned(lookup, address.name, caller)
    publish_context(caller=caller, user=user, deployment=deployment)
    return None


def _publish(
    observed: Observation,
    address: RequestAddress,
    credentials: Credentials,
    *,
    caller: Caller | None = None,
    user: User | None = None,
    deployment: DeploymentRef | None = None,
) -> None:
    publish(
        RequestContext(
            request_id=observed.request_id,
            trace=observed.trace,
            address=address,
            credentials=credentials,
            caller=caller,
            user=user,
            authorization=None if deployment is None else Authorization(deployment),
            run_headers={} if deployment is None else headers_for_runs(deployment.http, settings()),
        )
    )


def leave(response: Response) -> Response:
    """Complete the response of a request, and end its observation."""
    observed = observation.current()
    if observed is not None:
        observed.finish(response)
    return response


def release(error: BaseException | None) -> None:
    """Release what the request still holds, with or without a response."""
    observed = observation.current()
    if observed is not None:
        observed.release(error)
