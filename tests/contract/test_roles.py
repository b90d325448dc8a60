"""Which role each route needs, and which routes hold a stream slot: every route of the app is in this table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args
from uuid import uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient

from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID, ROLES
from shared.infra.postgres import connection
from tests.contract.conftest import caller
from web import operations

TABLE = """
open      GET     /
open      GET     /ok
open      GET     /info
open      GET     /metrics
open      GET     /docs
open      GET     /openapi.json
open      GET     /d/<deployment>/
open      GET     /d/<deployment>/ok
open      GET     /d/<deployment>/info
open      GET     /d/<deployment>/metrics
open      GET     /d/<deployment>/docs
open      GET     /d/<deployment>/openapi.json
open      GET     /o/
open      GET     /o/static/<version>/<path:name>
open      GET     /o/<tenant>/host/deployments/<deployment_id>
open      PUT     /v2/uploads/<token>

read      GET     /v2/deployments
deploy    POST    /v2/deployments
deploy    DELETE  /v2/deployments
read      GET     /v2/deployments/<deployment_id>
deploy    PATCH   /v2/deployments/<deployment_id>
deploy    DELETE  /v2/deployments/<deployment_id>
deploy    POST    /v2/deployments/<deployment_id>/upload-url
deploy    POST    /v2/deployments/<deployment_id>/push-token
read      GET     /v2/deployments/<deployment_id>/revisions
deploy    POST    /v2/deployments/<deployment_id>/revisions
read      GET     /v2/deployments/<deployment_id>/revisions/<revision_id>
read      GET     /v2/deployments/<deployment_id>/revisions/<revision_id>/stream
deploy    POST    /v2/deployments/<deployment_id>/revisions/<revision_id>/redeploy
deploy    POST    /v2/deployments/<deployment_id>/revisions/<revision_id>/interrupt
deploy    POST    /v2/deployments/<deployment_id>/traffic/promote
deploy    POST    /v2/deployments/<deployment_id>/traffic/abort
read      GET     /v2/deployments/<deployment_id>/previews
deploy    DELETE  /v2/deployments/<deployment_id>/previews/<name>
deploy    POST    /v1/projects/<deployment_id>/revisions/<revision_id>/interrupt
read      POST    /v1/projects/<deployment_id>/revisions/<revision_id>/build_logs
read      POST    /v1/projects/<deployment_id>/revisions/<revision_id>/deploy_logs
read      POST    /v1/projects/<deployment_id>/deploy_logs
read      GET     /v2/listeners
deploy    POST    /v2/listeners
read      GET     /v2/listeners/<listener_id>
deploy    PATCH   /v2/listeners/<listener_id>
deploy    DELETE  /v2/listeners/<listener_id>
read      GET     /v1/integrations/github/install
read      GET     /v1/integrations/github/<integration_id>/repos

read      GET     /v2/me
read      GET     /v2/organizations
read      GET     /v2/workers
read      GET     /v2/metrics/series
read      GET     /v2/metrics/overview
operator  POST    /v2/workers/<worker_id>/drain
read      GET     /v2/usage
operator  POST    /v2/organizations
read      GET     /v2/organizations/<organization_id>
operator  PATCH   /v2/organizations/<organization_id>
operator  DELETE  /v2/organizations/<organization_id>
admin     GET     /v2/keys
admin     POST    /v2/keys
admin     GET     /v2/keys/<key_id>
admin     PATCH   /v2/keys/<key_id>
admin     DELETE  /v2/keys/<key_id>

open      GET     /v2/auth/callback/<provider_id>
run       POST    /v2/auth/callback/<provider_id>
deploy    POST    /v2/auth/providers
deploy    POST    /v2/auth/providers/mcp-discover
read      GET     /v2/auth/providers
read      GET     /v2/auth/providers/<provider_id>
deploy    PATCH   /v2/auth/providers/<provider_id>
deploy    DELETE  /v2/auth/providers/<provider_id>
run       POST    /v2/auth/authenticate
run       GET     /v2/auth/wait/<auth_id>
read      GET     /v2/auth/tokens
read      GET     /v2/auth/tokens/exists
run       DELETE  /v2/auth/tokens
run       DELETE  /v2/auth/tokens/<token_id>
run       PATCH   /v2/auth/tokens/<token_id>/metadata

run       POST    /d/<deployment>/assistants
read      GET     /d/<deployment>/assistants/<assistant_id>
run       PATCH   /d/<deployment>/assistants/<assistant_id>
run       DELETE  /d/<deployment>/assistants/<assistant_id>
read      POST    /d/<deployment>/assistants/search
read      POST    /d/<deployment>/assistants/count
read      POST    /d/<deployment>/assistants/<assistant_id>/versions
run       POST    /d/<deployment>/assistants/<assistant_id>/latest
read      GET     /d/<deployment>/assistants/<assistant_id>/graph
read      GET     /d/<deployment>/assistants/<assistant_id>/schemas
read      GET     /d/<deployment>/assistants/<assistant_id>/subgraphs
read      GET     /d/<deployment>/assistants/<assistant_id>/subgraphs/<path:namespace>
run       POST    /d/<deployment>/threads
read      GET     /d/<deployment>/threads/<thread_id>
run       PATCH   /d/<deployment>/threads/<thread_id>
run       DELETE  /d/<deployment>/threads/<thread_id>
run       POST    /d/<deployment>/threads/<thread_id>/copy
run       POST    /d/<deployment>/threads/prune
read      GET     /d/<deployment>/threads/<thread_id>/storage
read      POST    /d/<deployment>/threads/search
read      POST    /d/<deployment>/threads/count
read      GET     /d/<deployment>/threads/<thread_id>/state
run       POST    /d/<deployment>/threads/<thread_id>/state
run       PATCH   /d/<deployment>/threads/<thread_id>/state
read      GET     /d/<deployment>/threads/<thread_id>/state/<checkpoint_id>
read      POST    /d/<deployment>/threads/<thread_id>/state/checkpoint
read      GET     /d/<deployment>/threads/<thread_id>/history
read      POST    /d/<deployment>/threads/<thread_id>/history
read      GET     /d/<deployment>/threads/<thread_id>/runs
run       POST    /d/<deployment>/threads/<thread_id>/runs
run       POST    /d/<deployment>/threads/<thread_id>/runs/stream
run       POST    /d/<deployment>/threads/<thread_id>/runs/wait
read      GET     /d/<deployment>/threads/<thread_id>/runs/<run_id>
run       DELETE  /d/<deployment>/threads/<thread_id>/runs/<run_id>
read      GET     /d/<deployment>/threads/<thread_id>/runs/<run_id>/join
read      GET     /d/<deployment>/threads/<thread_id>/runs/<run_id>/stream
read      GET     /d/<deployment>/threads/<thread_id>/stream
read      POST    /d/<deployment>/threads/<thread_id>/stream/events
read      GET     /d/<deployment>/threads/<thread_id>/stream/events
run       POST    /d/<deployment>/threads/<thread_id>/commands
run       POST    /d/<deployment>/threads/<thread_id>/runs/<run_id>/cancel
run       POST    /d/<deployment>/runs/crons
run       POST    /d/<deployment>/threads/<thread_id>/runs/crons
read      GET     /d/<deployment>/runs/crons/<cron_id>
read      GET     /d/<deployment>/runs/crons/<cron_id>/firings
run       PATCH   /d/<deployment>/runs/crons/<cron_id>
run       DELETE  /d/<deployment>/runs/crons/<cron_id>
read      POST    /d/<deployment>/runs/crons/search
read      POST    /d/<deployment>/runs/crons/count
read      GET     /d/<deployment>/store/items
run       PUT     /d/<deployment>/store/items
run       DELETE  /d/<deployment>/store/items
read      POST    /d/<deployment>/store/items/search
read      POST    /d/<deployment>/store/namespaces
run       POST    /d/<deployment>/runs
run       POST    /d/<deployment>/runs/stream
run       POST    /d/<deployment>/runs/wait
run       POST    /d/<deployment>/runs/batch
read      GET     /d/<deployment>/queue
read      POST    /d/<deployment>/runs/search
run       POST    /d/<deployment>/threads/<thread_id>/runs/<run_id>/retry
run       POST    /d/<deployment>/runs/cancel
read      POST    /d/<deployment>/webhooks/search
run       POST    /d/<deployment>/webhooks/<delivery_id>/retry
read      GET     /d/<deployment>/runs/<run_id>/join
read      GET     /d/<deployment>/runs/<run_id>/stream
run       POST    /d/<deployment>/mcp
read      DELETE  /d/<deployment>/mcp
run       POST    /d/<deployment>/a2a/<assistant_id>
read      GET     /d/<deployment>/a2a/<assistant_id>
read      GET     /d/<deployment>/a2a/<assistant_id>/.well-known/agent-card.json
read      GET     /d/<deployment>/.well-known/agent-card.json
"""
LONG = """
/d/<deployment>/runs/stream
/d/<deployment>/runs/wait
/d/<deployment>/runs/<run_id>/join
/d/<deployment>/runs/<run_id>/stream
/d/<deployment>/threads/<thread_id>/runs/stream
/d/<deployment>/threads/<thread_id>/runs/wait
/d/<deployment>/threads/<thread_id>/runs/<run_id>/join
/d/<deployment>/threads/<thread_id>/runs/<run_id>/stream
/d/<deployment>/threads/<thread_id>/stream
/d/<deployment>/threads/<thread_id>/stream/events
/v2/auth/wait/<auth_id>
/v2/deployments/<deployment_id>/revisions/<revision_id>/stream
"""
LONG_TO_WAIT = """
/d/<deployment>/threads/<thread_id>/runs/<run_id>/cancel
/v2/deployments/<deployment_id>/revisions/<revision_id>
/v1/projects/<deployment_id>/deploy_logs
"""
NEEDED = {(method, rule): role for role, method, rule in (line.split() for line in TABLE.split("\n") if line)}


def routes(app: Flask) -> Iterator[tuple[str, str]]:
    for rule in app.url_map.iter_rules():
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            yield method, rule.rule


def path_of(rule: str) -> str:
    return re.sub(r"<[^>]+>", lambda _: str(uuid4()), rule)


def test_every_route_is_in_the_table(app: Flask) -> None:
    missing = [f"{method} {rule}" for method, rule in routes(app) if (method, rule) not in NEEDED]
    assert missing == [], "say in the table which role a new route needs"


def test_every_route_states_its_role_as_the_table_has_it(app: Flask) -> None:
    assert get_args(operations.Role) == ("open", *ROLES)
    for rule in app.url_map.iter_rules():
        stated = operations.of_view(app.view_functions[rule.endpoint])
        needed = {NEEDED[method, rule.rule] for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}}
        assert needed == {stated.role}, rule.rule


def test_these_routes_hold_a_stream_slot(app: Flask) -> None:
    stated = {
        rule.rule: operations.of_view(app.view_functions[rule.endpoint]) for rule in app.url_map.iter_rules()
    }
    assert {path for path, operation in stated.items() if operation.long is True} == set(LONG.split())
    assert {path for path, operation in stated.items() if operation.long == "wait"} == set(
        LONG_TO_WAIT.split()
    )
    assert all(operation.long is True for operation in stated.values() if operation.sse)


def test_the_table_names_no_route_that_is_gone(app: Flask) -> None:
    assert set(NEEDED) - set(routes(app)) == set()


@pytest.mark.parametrize("role", ROLES)
def test_a_key_may_do_what_its_role_may_and_no_more(app: Flask, anonymous: FlaskClient, role: str) -> None:
    with connection() as conn:
        key = api_keys.create(conn, DEFAULT_ORGANIZATION_ID, name=role, role=role)
    friend = caller(app, key)
    friend.environ_base["HTTP_CONTENT_TYPE"] = "application/json"
    for (method, rule), needed in NEEDED.items():
        if needed == "open":
            assert anonymous.open(path_of(rule), method=method).status_code != 401, (method, rule)
            continue
        may = ROLES.index(role) >= ROLES.index(needed)
        status = friend.open(path_of(rule), method=method).status_code
        assert (status != 403) is may, (role, method, rule, status)
        assert status not in (401, 429), (role, method, rule, status)
