"""One revision, from claim to DEPLOYED.

The claimed builder holds a lease it renews; whatever it writes names its attempt, so that one that lost the
lease changes nothing. A failed step ends the revision with the step's name and reason; what served before
goes on serving. A builder that dies is found by upkeep, and the next attempt starts from a clean folder.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import gevent
import orjson
from gevent.event import Event as Signal
from gevent.lock import RLock
from sqlalchemy import Connection, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from shared import assistants, bus, logs, revision_log, revisions, secrets
from shared.database import connection
from shared.encryption import Undecryptable
from shared.errors import BuildFailed, Fenced, HostUnusable, Unavailable
from shared.models import Assistant, AssistantVersion, Graph, RevisionStatus
from shared.revision_log import BUILD, Clock, Line
from shared.revisions import Claimed
from shared.settings import Settings
from workers import environments, workspaces
from workers.events import RunLog, Writer
from workers.hosts import Host

log = logging.getLogger(__name__)

Graphs = Mapping[str, Mapping[str, Any]]

MAX_LOG_BYTES = 20 * 1024 * 1024
FLUSH_SECONDS = 0.3
FLUSHED_SECONDS = 5.0
NOTICE_SECONDS = 3.0  # after which a build that was interrupted stops


class Builder:
    """What one builder process has."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.writer = Writer(bus.client(), retention_seconds=settings.event_retention_seconds)

    def build(self, revision_id: UUID) -> None:
        """Build and deploy a revision that waits for it; returns at once when somebody else has it."""
        try:
            with connection() as conn:
                claimed = revisions.claim(
                    conn, revision_id, owner=self.settings.worker, lease_seconds=self.settings.lease_seconds
                )
        except Unavailable as error:
            log.warning("revision %s: cannot be claimed now: %s", revision_id, error)
            return
        if claimed is not None:
            with logs.bound(revision_id=claimed.revision_id):
                self._build(claimed)

    def _build(self, claimed: Claimed) -> None:
        log.info("revision %s: attempt %d", claimed.revision_id, claimed.attempt)
        try:
            with Lease(claimed, self.settings.lease_seconds) as lease:
                build = _Build(self, claimed, lease)
                with build.log:
                    try:
                        build.tell()
                    except BuildFailed as failure:
                        build.fail(failure)
        except Fenced:
            log.warning("revision %s: not attempt %d's any more", claimed.revision_id, claimed.attempt)
        except Unavailable as error:
            log.warning("revision %s: left to the next attempt: %s", claimed.revision_id, error)


class Lease:
    """A claim, kept as long as the block runs; the builder gets Fenced when it is lost.

    It is ended by asking, not by killing: a greenlet killed inside a statement would leave its connection
    in the middle of something.
    """

    def __init__(self, claimed: Claimed, seconds: float) -> None:
        self._claimed = claimed
        self._seconds = seconds
        self._released = Signal()

    def __enter__(self) -> Lease:
        self._greenlet = gevent.spawn(self._renew, gevent.getcurrent())
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Renew no more: a revision that has ended has no lease."""
        self._released.set()
        self._greenlet.join()

    def _renew(self, builder: gevent.Greenlet) -> None:
        while not self._released.wait(min(self._seconds / 3, NOTICE_SECONDS)):
            try:
                with connection() as conn:
                    ours = revisions.renew(conn, self._claimed, lease_seconds=self._seconds)
            except (Unavailable, DBAPIError) as error:
                log.warning("revision %s: its lease was not renewed: %s", self._claimed.revision_id, error)
                continue
            if not ours:
                gevent.kill(builder, Fenced())
                return


class BuildLog:
    """What a build says: rows in the build log, and live events of the revision."""

    def __init__(self, writer: Writer, claimed: Claimed, secrets: Mapping[str, str]) -> None:
        self._claimed = claimed
        self._scrub = revision_log.scrubber(secrets.values())
        self._clock = Clock()
        self._lines: list[Line] = []
        self._bytes = 0
        self._closed = Signal()
        self.storing = RLock()
        self.events = RunLog(
            writer,
            claimed.revision_id,
            attempt=claimed.attempt * 2,  # odd numbers are the control plane's
            owner=claimed.owner,
            floor=claimed.floor,
            reserve=self._reserve,
            on_fenced=lambda: None,  # the lease tells
        )

    def __enter__(self) -> BuildLog:
        self._flusher = gevent.spawn(self._flush_forever)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._flusher.join()
        self._flush()
        if self.events.ended:
            self.events.flushed.wait(FLUSHED_SECONDS)

    def say(self, level: str, message: str) -> None:
        """One line, or several."""
        for part in message.splitlines() or [""]:
            if self._bytes > MAX_LOG_BYTES:
                return
            self._bytes += len(part)
            if self._bytes > MAX_LOG_BYTES:
                level, part = "WARNING", f"the build log is cut off at {MAX_LOG_BYTES // 1024 // 1024} MiB"
            self._add(level, self.shown(part))

    def shown(self, message: str) -> str:
        """The message as anyone may see it."""
        return revision_log.clean(self._scrub(message))

    def _add(self, level: str, message: str) -> None:
        claimed = self._claimed
        line = Line(claimed.deployment_id, claimed.revision_id, BUILD, self._clock.now(), level, message)
        self._lines.append(line)
        self.events.add(revision_log.log_payload(line))

    def status(self, status: RevisionStatus, message: str | None = None) -> None:
        """The revision has this status now."""
        self.events.add(revision_log.status_payload(status, message))

    def end(self, status: RevisionStatus, message: str | None = None) -> None:
        """… and it is its last."""
        self.status(status, message)
        self.events.end(revision_log.end_payload(status))

    def _reserve(self, upto: int) -> bool:
        try:
            with connection() as conn:
                revisions.reserve(conn, self._claimed, upto)
        except (Unavailable, Fenced):
            return False
        return True

    def _flush_forever(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS):
            try:
                self._flush()
            except (Unavailable, DBAPIError) as error:
                log.warning("revision %s: its log waits: %s", self._claimed.revision_id, error)

    def _flush(self) -> None:
        with self.storing:
            if not self._lines:
                return
            lines, self._lines = self._lines, []
            try:
                with connection() as conn:
                    revision_log.append(conn, lines)
            except BaseException:  # whatever it is, the lines are not stored
                self._lines[:0] = lines
                raise

    def store(self, conn: Connection) -> None:
        """Store what has gathered; `storing` must be held, so that no line is still on its way elsewhere."""
        lines, self._lines = self._lines, []
        revision_log.append(conn, lines)


class _Build:
    """One attempt's story."""

    def __init__(self, builder: Builder, claimed: Claimed, lease: Lease) -> None:
        self._settings = builder.settings
        self._claimed = claimed
        self._lease = lease
        self._unreadable: Undecryptable | None = None
        self._secrets: dict[str, str] = {}
        try:
            with connection() as conn:
                self._secrets = secrets.secrets_of(conn, claimed.revision_id)
        except Undecryptable as error:
            self._unreadable = error
        self.log = BuildLog(builder.writer, claimed, self._secrets)

    def tell(self) -> None:
        """Environment, inspection, switch; raises BuildFailed naming the step."""
        claimed = self._claimed
        self.log.status(RevisionStatus(claimed.status))
        if self._unreadable is not None:
            raise BuildFailed("secrets", self._unreadable.message, status="CREATE_FAILED")
        if claimed.archive_digest is None:
            raise BuildFailed("fetch", "the revision has no source", status="CREATE_FAILED")
        made = self._make()
        graphs = self._inspect(made)
        if claimed.status == RevisionStatus.BUILDING:
            self._keep(made)
            self._advance(RevisionStatus.AWAITING_DEPLOY)
            self._advance(RevisionStatus.DEPLOYING)
        self._switch(graphs)

    def _make(self) -> environments.Made:
        claimed = self._claimed
        assert claimed.archive_digest is not None
        return environments.make(
            self._settings,
            claimed.build_id,
            digest=claimed.archive_digest,
            config_path=claimed.config.get("langgraph_config_path"),
            requirements=claimed.requirements,
            say=self.log.say,
            deadline_seconds=self._settings.build_timeout_seconds,
        )

    def _inspect(self, made: environments.Made) -> Graphs:
        """Load every graph once, as a host of the deployment would."""
        graphs = made.manifest.graphs
        self.log.say("INFO", f"loading {len(graphs)} graph{'' if len(graphs) == 1 else 's'}")
        command = environments.host_command(self._settings, made, self._secrets, inspect=True)
        try:
            host = Host(
                self._claimed.revision_id,
                command,
                self._settings,
                lambda level, message, _: self.log.say(level, message),
            )
        except HostUnusable as error:
            raise BuildFailed("graphs", error.message) from error
        try:
            return _described(host.wait_ready(), graphs)
        except HostUnusable as error:
            is_its_end = error.message == host.died  # it did not get as far as saying why
            reason = f"the process that loads them {error.message}" if is_its_end else error.message
            raise BuildFailed("graphs", reason) from error
        finally:
            host.kill("its graphs have been looked at")
            host.wait_output()

    def _keep(self, made: environments.Made) -> None:
        """Store what makes the environment the same wherever it is made."""
        with connection() as conn:
            revisions.keep_artifact(
                conn,
                self._claimed,
                requirements=made.requirements,
                python_version=f"{sys.version_info[0]}.{sys.version_info[1]}",
                manifest={"graphs": {name: dict(entry) for name, entry in made.manifest.graphs.items()}},
            )

    def _advance(self, status: RevisionStatus) -> None:
        with connection() as conn:
            revisions.advance(conn, self._claimed, status)
        self.log.status(status)

    def _switch(self, graphs: Graphs) -> None:
        """From here on this revision serves; all of it in one transaction."""
        claimed = self._claimed
        self._lease.release()
        with self.log.storing, connection() as conn:
            revisions.lock_deployment(conn, claimed.deployment_id)
            moved = revisions.end(conn, claimed, RevisionStatus.DEPLOYED, None)
            _store_graphs(conn, claimed.revision_id, graphs)
            _make_default_assistants(conn, claimed.deployment_id, graphs)
            served = {"id": claimed.deployment_id, "revision_id": claimed.revision_id}
            name = conn.execute(SERVE, served).scalar_one()
            self.log.say("INFO", f"deployed at {self._settings.url.rstrip('/')}/d/{name}")
            self.log.store(conn)  # whoever sees the end finds the whole log
        log.info("revision %s serves deployment %s", claimed.revision_id, name)
        self.log.end(RevisionStatus.DEPLOYED)
        self._warm()
        revision_log.announce(moved)

    def _warm(self) -> None:
        channel = bus.warm_channel(self._claimed.pool)
        try:
            bus.client().publish(channel, str(self._claimed.revision_id))
        except bus.RedisError as error:
            log.info("revision %s: not warmed: %s", self._claimed.revision_id, error)

    def fail(self, failure: BuildFailed) -> None:
        """End the revision with the step and its reason; what served before goes on serving."""
        claimed = self._claimed
        status = RevisionStatus(failure.status)
        if claimed.status == RevisionStatus.DEPLOYING:  # what was built once is deployed again
            status = RevisionStatus.DEPLOY_FAILED
        reason = self.log.shown(f"{failure.step}: {_cause(failure.message)}")
        self.log.say("ERROR", f"step {failure.step!r} failed: {_cause(failure.message)}")
        self._lease.release()
        with self.log.storing, connection() as conn:
            revisions.lock_deployment(conn, claimed.deployment_id)
            moved = revisions.end(conn, claimed, status, reason)
            self.log.store(conn)  # whoever sees the end finds the whole log
        log.info("revision %s: %s: %s", claimed.revision_id, status, reason)
        self.log.end(status, reason)
        revision_log.announce(moved)
        if claimed.build_id == claimed.revision_id:
            workspaces.remove(self._settings, claimed.build_id)


def _cause(message: str) -> str:
    """What failed and, of a traceback below it, the last line: the whole is in the log."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1:
        return f"{lines[0]}: {lines[-1]}"
    return lines[0] if lines else "failed"


def _described(answer: Mapping[str, Any], wanted: Mapping[str, Any]) -> Graphs:
    """What the host says of the graphs; user code may have spoken in its place. Raises BuildFailed."""
    graphs = answer.get("graphs")
    try:
        if not isinstance(graphs, dict) or graphs.keys() != wanted.keys():
            raise TypeError("not the graphs of the configuration")
        for graph in graphs.values():
            if not isinstance(graph["description"], str | None):
                raise TypeError("a description that is no text")
            if not all(isinstance(graph[name], dict) for name in ("drawings", "schemas", "subgraphs")):
                raise TypeError("a description without its parts")
        if b"\\u0000" in orjson.dumps(graphs):
            raise TypeError("a NUL character in a schema or description")
    except (KeyError, TypeError) as error:
        raise BuildFailed("graphs", f"the graphs could not be described: {error}") from error
    return graphs


SERVE = text("""
UPDATE deployment SET active_revision_id = :revision_id, status = 'READY', updated_at = now()
WHERE id = :id
RETURNING name
""")


def _store_graphs(conn: Connection, revision_id: UUID, graphs: Graphs) -> None:
    for graph_id, graph in graphs.items():
        row = {name: graph[name] for name in ("description", "drawings", "schemas", "subgraphs")}
        conn.execute(
            insert(Graph)
            .values(revision_id=revision_id, graph_id=graph_id, **row)
            .on_conflict_do_update(index_elements=["revision_id", "graph_id"], set_=row)
        )


def _make_default_assistants(conn: Connection, deployment_id: UUID, graphs: Graphs) -> None:
    """One assistant a graph, where there is none yet; what users made of theirs stays."""
    for graph_id, graph in graphs.items():
        assistant_id = assistants.default_id(graph_id)
        made = conn.execute(
            insert(Assistant)
            .values(deployment_id=deployment_id, assistant_id=assistant_id)
            .on_conflict_do_nothing()
            .returning(Assistant.assistant_id)
        ).one_or_none()
        if made is not None:
            conn.execute(
                insert(AssistantVersion).values(
                    deployment_id=deployment_id,
                    assistant_id=assistant_id,
                    version=1,
                    graph_id=graph_id,
                    metadata_={"created_by": "system"},
                    name=graph_id,
                    description=graph["description"],
                )
            )
