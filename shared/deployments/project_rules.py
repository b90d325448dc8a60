"""Rules for a project that the command line checks before an upload, and the service again.

They are about names of environment variables, about JavaScript, and about questions to people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
MAX_VALUE_BYTES = 64 * 1024

# These would change which code runs, or where it looks for the platform's own servers.
FORBIDDEN = re.compile(
    r"DATABASE_(READ_)?URL|REDIS_((BROKER|EVENTS)_)?URL|RUNYARD_.*|GRAPH_HOST_.*|LD_.*|PYTHON.*|UV_.*|BASH_ENV|ENV|IFS"
)

# The hosted product reserves these names; the `langgraph deploy` command never sends them. The variables that configure
# tracing are not reserved here: each deployment configures its own tracing.
RESERVED = frozenset(
    """
    LANGSMITH_LANGGRAPH_GIT_REPO LANGGRAPH_GIT_REPO_PATH
    LANGSMITH_CONTROL_PLANE_API_KEY POSTGRES_URI POSTGRES_PASSWORD DATABASE_URI
    LANGSMITH_LANGGRAPH_GIT_REF LANGSMITH_LANGGRAPH_GIT_REF_SHA LANGGRAPH_AUTH_TYPE
    LANGSMITH_AUTH_ENDPOINT LANGSMITH_TENANT_ID LANGSMITH_AUTH_VERIFY_TENANT_ID
    LANGSMITH_HOST_PROJECT_ID LANGSMITH_HOST_PROJECT_NAME LANGSMITH_HOST_REVISION_ID LOG_JSON
    LOG_DICT_TRACEBACKS REDIS_URI DD_TRACE_PSYCOPG_ENABLED
    DD_TRACE_REDIS_ENABLED LANGSMITH_DEPLOYMENT_NAME LANGGRAPH_CLOUD_LICENSE_KEY
    """.split()
)
# Actions for a question that expires, of `inbox.on_expiry`. `leave` marks it and leaves it open.
EXPIRY_ACTIONS = ("answer", "cancel", "leave")
MAX_INBOX_SECONDS = 366 * 24 * 3600  # the trigger that inserts questions adds the seconds to a time
MAX_DEFAULT_ANSWER_BYTES = 64 * 1024  # each question of the deployment has a copy

JAVASCRIPT_SUFFIXES = (".ts", ".mts", ".cts", ".tsx", ".js", ".mjs", ".cjs", ".jsx")


def _is_name(name: str) -> bool:
    """Whether this is a valid name of an environment variable."""
    return NAME.fullmatch(name) is not None


def _is_forbidden(name: str) -> bool:
    """Whether the variable would affect the platform itself."""
    return FORBIDDEN.fullmatch(name.upper()) is not None


def refused_variables(names: Iterable[str]) -> list[str]:
    """Return the names that a deployment may not set."""
    return [name for name in names if not _is_name(name) or _is_forbidden(name) or name in RESERVED]


def javascript_refusal(module: str, kind: str) -> str | None:
    """Return an error text if the file is JavaScript, else None. `kind` names the kind of object in it for the text."""
    if not module.endswith(JAVASCRIPT_SUFFIXES):
        return None
    return f"{module!r} is a JavaScript {kind}, which this server does not run: it runs Python only"


def default_answer_refusal(rules: Mapping[str, Any]) -> str | None:
    """Return an error text if `on_expiry` has an answer without the action `answer` or the reverse, else None."""
    needs_answer = rules.get("action") == "answer"
    if needs_answer == ("answer" in rules):
        return None
    return "required with the action answer" if needs_answer else "allowed only with the action answer"
