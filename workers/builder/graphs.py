"""Inspection of a revision's graphs and other user code: loaded and described once when the revision is built.

A deployment whose environment and variables have not changed reuses the earlier description.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import gevent
import orjson
from sqlalchemy import Connection, text
from sqlalchemy.dialects.postgresql import insert

from shared import assistants
from shared.deployments import secrets
from shared.errors import BuildFailed, HostUnusable
from shared.infra.encryption import Undecryptable
from shared.infra.json_text import document_holds_nul, holds_nul
from shared.infra.postgres import dumps
from shared.models import ASSISTANT, ASSISTANT_VERSION, GRAPH
from shared.settings import Settings
from workers.builder import user_code
from workers.builder.config.manifest import Manifest
from workers.builder.environments import Environment
from workers.builder.host_commands import GRAPH_HOST, host_command
from workers.builder.steps import WriteLine
from workers.runner.host import Host

STEP = "graphs"
CONFIGS = "LANGGRAPH_CONFIG"
OBJECT = '{"agent": {"configurable": {"model": "small"}, "recursion_limit": 50}}'
WATCH_SECONDS = 0.5

Graphs = Mapping[str, Mapping[str, Any]]
Configs = Mapping[str, dict[str, Any]]  # of default assistants, by graph


@dataclass(frozen=True)
class Inspected:
    """The description of a project's code."""

    graphs: Graphs
    user_code: Mapping[str, Any] | None = None  # the document that `shared.deployments.user_code` reads
    http: Mapping[str, Any] = field(default_factory=dict)  # `http` of langgraph.json, completed by the app


def inspect(
    settings: Settings,
    revision_id: UUID,
    made: Environment,
    variables: Mapping[str, str],
    write_line: WriteLine,
) -> Inspected:
    """Load the project's code once, in a graph host, and describe it. Raises BuildFailed."""
    write_line("INFO", f"loading {_listed(made.manifest)}")
    command = host_command(settings, made, variables, inspect=True)
    here = f"{made.workspace.project}/"  # removed from messages, so that paths are relative to the project

    def write_output(level: str, message: str, _: UUID | None) -> None:
        write_line(level, message.replace(here, ""))

    try:
        host = Host(revision_id, command, settings, write_output)
    except HostUnusable as error:
        raise BuildFailed(STEP, error.message) from error
    watcher = gevent.spawn(_watch, host)
    try:
        answer = host.wait_ready()
        found = Inspected(
            _described(answer, made.manifest.graphs),
            user_code.found(answer, made.manifest, write_line),
            user_code.http_of(answer, made.manifest),
        )
    except HostUnusable as error:
        is_its_end = error.message == host.died  # the process ended before it could report a reason
        reason = f"the process that loads them {error.message}" if is_its_end else error.message
        raise BuildFailed(STEP, reason.replace(here, "")) from error
    finally:
        watcher.kill()
        host.kill("its graphs have been looked at")
        host.wait_output()
    for graph_id, graph in found.graphs.items():
        if graph.get("error"):
            write_line("WARNING", f"graph {graph_id!r}: {graph['error']}".replace(here, ""))
    return found


def _listed(manifest: Manifest) -> str:
    count = len(manifest.graphs)
    parts = [f"{count} graph{'' if count == 1 else 's'}"]
    parts += ["the project's authorization"] if manifest.auth else []
    parts += ["its app"] if "app" in manifest.http else []
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def _watch(host: Host) -> None:
    """Measure the host until it ends. `measure` kills a host that exceeds its limits."""
    while host.died is None:
        host.measure()
        gevent.sleep(WATCH_SECONDS)


@functools.cache
def inspector() -> str:
    """Return a digest of the code that inspects projects, since another version may describe them differently."""
    found = hashlib.sha256()
    builder = Path(user_code.__file__)
    for path in (*sorted(GRAPH_HOST.rglob("*.py")), builder, *sorted(builder.parent.glob("config/*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


SAME_BUILD = text("""
SELECT id, user_code, manifest -> 'http' AS http FROM revision
WHERE deployment_id = :deployment_id AND id <> :id AND coalesce(build_id, id) = :build_id
  AND status = 'DEPLOYED' AND manifest ->> 'inspector' = :inspector
ORDER BY number DESC LIMIT 3
""")
KEPT = text("SELECT graph_id, description, drawings, schemas, subgraphs FROM graph WHERE revision_id = :id")


def known(
    conn: Connection, deployment_id: UUID, revision_id: UUID, build_id: UUID, variables: Mapping[str, str]
) -> Inspected | None:
    """Return the description from an earlier load of the same build with the same variables; None if there is none."""
    values = {"deployment_id": deployment_id, "id": revision_id, "build_id": build_id}
    for other in conn.execute(SAME_BUILD, {**values, "inspector": inspector()}).all():
        if not _has(conn, other.id, variables):
            continue
        rows = conn.execute(KEPT, {"id": other.id}).mappings().all()
        if rows:
            graphs = {row["graph_id"]: {name: row[name] for name in PARTS} for row in rows}
            return Inspected(graphs, other.user_code, other.http or {})
    return None


PARTS = ("description", "drawings", "schemas", "subgraphs")


def _has(conn: Connection, revision_id: UUID, variables: Mapping[str, str]) -> bool:
    try:
        return secrets.secrets_of(conn, revision_id) == variables
    except Undecryptable:
        return False


def _described(answer: Mapping[str, Any], wanted: Mapping[str, Any]) -> Graphs:
    """Return the host's description of the graphs after validation. Raises BuildFailed.

    User code runs in the host and may have sent its own description.
    """
    graphs = answer.get("graphs")
    try:
        if not isinstance(graphs, dict) or graphs.keys() != wanted.keys():
            raise TypeError("not the graphs of the configuration")
        for graph in graphs.values():
            if not isinstance(graph["description"], str | None):
                raise TypeError("a description that is no text")
            if not all(isinstance(graph[name], dict) for name in ("drawings", "schemas", "subgraphs")):
                raise TypeError("a description without its parts")
        if document_holds_nul(dumps(graphs)):
            raise TypeError("a NUL character in a schema or description")
    except (KeyError, TypeError) as error:
        raise BuildFailed("graphs", f"the graphs could not be described: {error}") from error
    return graphs


def store(conn: Connection, revision_id: UUID, graphs: Graphs) -> None:
    """Store the descriptions of a revision's graphs."""
    for graph_id, graph in graphs.items():
        row = {name: graph[name] for name in PARTS}
        conn.execute(
            insert(GRAPH)
            .values(revision_id=revision_id, graph_id=graph_id, **row)
            .on_conflict_do_update(index_elements=["revision_id", "graph_id"], set_=row)
        )


def configs(variables: Mapping[str, str]) -> Configs:
    """Return the configurations of default assistants by graph, from a deployment's variables. Raises BuildFailed.

    `context` is another name for `configurable`, as in the API.
    """
    text = variables.get(CONFIGS, "").strip()
    try:
        found = orjson.loads(text or "{}")
    except ValueError as error:
        raise BuildFailed(STEP, f"{CONFIGS} is not JSON: {error}") from error
    if holds_nul(found):
        raise BuildFailed(STEP, f"{CONFIGS} must not hold NUL characters")
    if not isinstance(found, dict):
        raise BuildFailed(STEP, f"{CONFIGS} must be an object of configurations by graph: {OBJECT}")
    return {graph_id: _config(graph_id, config) for graph_id, config in found.items()}


def _config(graph_id: str, config: Any) -> dict[str, Any]:
    if not isinstance(config, dict) or not all(
        isinstance(config.get(name, {}), dict) for name in ("configurable", "context")
    ):
        raise BuildFailed(STEP, f"{CONFIGS} must be an object of configurations by graph: {OBJECT}")
    if "context" not in config:
        return config
    if "configurable" in config:
        reason = "has both configurable and context, which are one thing: name one of them"
        raise BuildFailed(STEP, f"{CONFIGS}: the configuration of {graph_id!r} {reason}")
    context = config.pop("context")
    return {**config, "configurable": context}


def make_default_assistants(
    conn: Connection, deployment_id: UUID, graphs: Graphs, configs: Configs, *, reconfigure: bool = True
) -> None:
    """Create the default assistant of each graph, with its configuration from `configs`.

    With `reconfigure`, existing default assistants get their new configuration, too. Changes by users are kept.
    """
    for graph_id, graph in graphs.items():
        key = {"deployment_id": deployment_id, "assistant_id": assistants.default_id(graph_id)}
        config = configs.get(graph_id, {})
        content = {"config": config, "context": config.get("configurable", {})}
        made = conn.execute(
            insert(ASSISTANT).values(**key).on_conflict_do_nothing().returning(ASSISTANT.c.assistant_id)
        ).one_or_none()
        if made is None:
            if reconfigure:
                assistants.reconfigure_default(conn, deployment_id, graph_id, config)
            continue
        conn.execute(
            insert(ASSISTANT_VERSION).values(
                **key,
                **content,
                version=1,
                graph_id=graph_id,
                metadata={"created_by": "system"},
                name=graph_id,
                description=graph["description"],
            )
        )
