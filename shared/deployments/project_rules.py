"""Rules for a project that the command line checks before an upload, and the service again.

They are about names of environment variables, about the language of a project, and about questions to people.
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
# Of `replay.tools` in langgraph.json and of `live_tools` in a request.
MAX_LIVE_TOOLS, MAX_TOOL_NAME = 200, 256
MAX_DEFAULT_ANSWER_BYTES = 64 * 1024  # each question of the deployment has a copy

SCRIPTS = (".ts", ".mts", ".cts", ".js", ".mjs", ".cjs")  # endings of files with JavaScript graphs
COMPONENTS = (".tsx", ".jsx")
# Package managers by the names of their lock files. The first that a folder has is used.
LOCK_FILES = {
    "yarn.lock": "yarn",
    "pnpm-lock.yaml": "pnpm",
    "npm-shrinkwrap.json": "npm",
    "package-lock.json": "npm",
}
MIXED = "graphs: Python and JavaScript graphs in one project are not supported: deploy them apart"


def _is_name(name: str) -> bool:
    """Whether this is a valid name of an environment variable."""
    return NAME.fullmatch(name) is not None


def _is_forbidden(name: str) -> bool:
    """Whether the variable would affect the platform itself."""
    return FORBIDDEN.fullmatch(name.upper()) is not None


def refused_variables(names: Iterable[str]) -> list[str]:
    """Return the names that a deployment may not set."""
    return [name for name in names if not _is_name(name) or _is_forbidden(name) or name in RESERVED]


def is_script(entry: str) -> bool:
    """Whether a reference like "./file.ts:export" names a JavaScript file."""
    return entry.partition(":")[0].endswith(SCRIPTS)


def is_javascript(config: Mapping[str, Any]) -> bool:
    """Whether a langgraph.json has a graph in a script."""
    graphs = config.get("graphs")
    return isinstance(graphs, Mapping) and any(map(is_script, entries(graphs)))


def entries(graphs: Mapping[str, Any]) -> list[str]:
    """Return the references of the key `graphs`. Leaves out invalid ones."""
    paths = (entry.get("path") if isinstance(entry, Mapping) else entry for entry in graphs.values())
    return [path for path in paths if isinstance(path, str)]


def language_refusal(config: Mapping[str, Any]) -> str | None:
    """Return an error text, with the key, if a langgraph.json refers to code of two languages or of none, else None."""
    graphs, auth, http, replay = (
        section if isinstance(section := config.get(key), Mapping) else {}
        for key in ("graphs", "auth", "http", "replay")
    )
    others = {
        "auth.path": auth.get("path"),
        "http.app": http.get("app"),
        "replay.score": replay.get("score"),
    }
    apps = http.get("apps")
    others |= {f"http.apps.{path}": app for path, app in apps.items()} if isinstance(apps, Mapping) else {}
    named = {f"graphs.{id}": path for id, graph in graphs.items() for path in entries({id: graph})}
    named |= {where: path for where, path in others.items() if isinstance(path, str)}
    for where, path in named.items():
        if path.partition(":")[0].endswith(COMPONENTS):
            return f"{where}: {path.partition(':')[0]!r}: files that end in .tsx or .jsx are not supported"
    languages = {is_script(path) for path in entries(graphs)}
    if len(languages) > 1:
        return MIXED
    of_graphs = True in languages
    for where, path in named.items():
        if languages and is_script(path) != of_graphs:
            languages_of = ("Python", "JavaScript") if of_graphs else ("JavaScript", "Python")
            return (
                f"{where}: {path.partition(':')[0]!r} is {languages_of[0]}, the graphs are {languages_of[1]}"
            )
    return None


def default_answer_refusal(rules: Mapping[str, Any]) -> str | None:
    """Return an error text if `on_expiry` has an answer without the action `answer` or the reverse, else None."""
    needs_answer = rules.get("action") == "answer"
    if needs_answer == ("answer" in rules):
        return None
    return "required with the action answer" if needs_answer else "allowed only with the action answer"
