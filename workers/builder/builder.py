"""The builder: takes a revision from its claim to DEPLOYED.

The builder renews a lease on the revision. Every write names the attempt, so a builder that has lost its lease changes
nothing. A failed step ends the revision with the step's name and the reason, and the revision that served before keeps
serving. If a builder dies, upkeep finds its revision, and the next attempt starts with an empty folder.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from datetime import UTC, datetime
from uuid import UUID

import gevent
from gevent.event import Event as Signal
from greenlet import greenlet
from sqlalchemy import Connection

from shared import store_vectors
from shared.deployments import components, revision_events, revisions, secrets
from shared.deployments.components import Bundle
from shared.deployments.revisions import ClaimedRevision
from shared.errors import BuildFailed, Fenced, HostUnusable, Unavailable
from shared.figures import folding
from shared.hosts import calls
from shared.infra import broker, logs
from shared.infra.encryption import Undecryptable
from shared.infra.postgres import STATEMENT_ERRORS, connection
from shared.models import RevisionStatus
from shared.settings import Settings
from workers.builder import environments, host_command, inspection, publish, sources, workspaces
from workers.builder.build_log import BuildLog
from workers.builder.config.fields import refused
from workers.builder.environments import Environment
from workers.builder.inspection import Inspected
from workers.builder.node import components as node_components
from workers.builder.node.resolved import NO_COMMANDS
from workers.builder.publish import Configs
from workers.celery_app import PASS_ON_SECONDS
from workers.runner.event_writer import Writers

log = logging.getLogger(__name__)

FRAME = '  File "'  # the beginning of a traceback line that names a file
NODE_FRAME = re.compile(r"\s+at .*[:(]")  # a line of a JavaScript stack
NOTICE_SECONDS = 3.0  # longest interval of renewals, so that an interrupted build stops soon


class ShuttingDown(BaseException):
    """The builder shuts down. A BaseException, so that no step treats it as its own failure."""


class Builder:
    """Builds revisions in one process, and returns them to the queue when it shuts down."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.writers = Writers(retention_seconds=settings.event_retention_seconds)
        self._greenlets: set[greenlet] = set()
        self._is_stopping = False
        self.is_drained = False  # by an operator

    def build(self, revision_id: UUID) -> None:
        """Claim, build and deploy a revision. Returns at once if another builder has claimed it."""
        if self.is_drained:
            gevent.sleep(PASS_ON_SECONDS)
            broker.enqueue_build(revision_id)
            return
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

    @property
    def building(self) -> int:
        """The number of builds in progress."""
        return len(self._greenlets)

    def stop(self) -> None:
        """Interrupt all builds so that other builders take them over. Returns at once."""
        self._is_stopping = True
        for worker in tuple(self._greenlets):
            gevent.kill(worker, ShuttingDown())

    def _build(self, claimed: ClaimedRevision) -> None:
        log.info("revision %s: attempt %d", claimed.revision_id, claimed.attempt)
        self._greenlets.add(gevent.getcurrent())
        try:
            self._attempt(claimed)
        except ShuttingDown:
            self._give_back(claimed)
        except Fenced:
            log.warning("revision %s: attempt %d has lost its lease", claimed.revision_id, claimed.attempt)
        except Unavailable as error:
            log.warning("revision %s: left to the next attempt: %s", claimed.revision_id, error)
        finally:
            self._greenlets.discard(gevent.getcurrent())

    def _attempt(self, claimed: ClaimedRevision) -> None:
        with Lease(claimed, self.settings.lease_seconds) as lease:
            build = _Build(self, claimed, lease)
            with build.log:
                try:
                    if self._is_stopping:  # claimed after `stop` interrupted the other builds
                        raise ShuttingDown
                    build.run()
                except BuildFailed as failure:
                    build.fail(failure)
                except ShuttingDown:
                    build.log.write("WARNING", "this builder stops: another one begins anew")
                    raise

    def _give_back(self, claimed: ClaimedRevision) -> None:
        try:
            with connection() as conn:
                is_back = revisions.give_back(conn, claimed)
        except (Unavailable, *STATEMENT_ERRORS) as error:
            log.warning("revision %s: left until its lease ends: %s", claimed.revision_id, error)
            return
        if is_back:
            log.info("revision %s: given back", claimed.revision_id)
            broker.enqueue_build(claimed.revision_id)


class Lease:
    """The lease on a revision, renewed while the block runs. Raises Fenced in the builder's greenlet if it is lost.

    The renewing greenlet is signaled to end and not killed. A greenlet killed during a statement would leave its
    database connection in an undefined state.
    """

    def __init__(self, claimed: ClaimedRevision, seconds: float) -> None:
        self._claimed = claimed
        self._seconds = seconds
        self._released = Signal()

    def __enter__(self) -> Lease:
        self._greenlet = gevent.spawn(self._renew, gevent.getcurrent())
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Stop renewing, because a revision that has ended has no lease."""
        self._released.set()
        self._greenlet.join()

    def _renew(self, builder: gevent.Greenlet) -> None:
        while not self._released.wait(min(self._seconds / 3, NOTICE_SECONDS)):
            try:
                with connection() as conn:
                    is_renewed = revisions.renew(conn, self._claimed, lease_seconds=self._seconds)
            except (Unavailable, *STATEMENT_ERRORS) as error:
                log.warning("revision %s: its lease was not renewed: %s", self._claimed.revision_id, error)
                continue
            if not is_renewed:
                gevent.kill(builder, Fenced())
                return


class _Build:
    """One attempt at building one revision."""

    def __init__(self, builder: Builder, claimed: ClaimedRevision, lease: Lease) -> None:
        self._began_at = time.monotonic()
        self._settings = builder.settings
        self._claimed = claimed
        self._lease = lease
        self._unreadable: Undecryptable | None = None
        self._secrets: dict[str, str] = {}
        self._commands = NO_COMMANDS
        self._resolved_at = datetime.now(UTC).isoformat()
        try:
            with connection() as conn:
                self._secrets = secrets.secrets_of(conn, claimed.revision_id)
        except Undecryptable as error:
            self._unreadable = error
        self.log = BuildLog(builder.writers.of(claimed.revision_id), claimed, self._secrets)

    def run(self) -> None:
        """Create the environment, inspect the graphs and switch traffic. Raises BuildFailed with the failed step."""
        claimed = self._claimed
        self.log.add_status(RevisionStatus(claimed.status))
        if self._unreadable is not None:
            raise BuildFailed("secrets", self._unreadable.message, status="CREATE_FAILED")
        self._variables = self._secrets
        self._fetch()
        self._reuse_build()
        environment = self._make()
        if environment.manifest.store.get("index"):
            _require_vectors()
        if environment.node is not None:
            for name in host_command.dropped_variables({**environment.manifest.env, **self._variables}):
                self.log.write(
                    "WARNING", f"the variable {name} is not set for the graphs: it would change Node or npm"
                )
        configs = publish.assistant_configs({**environment.manifest.env, **self._variables})
        inspected = self._inspect(environment)
        bundles = self._bundle(environment)
        if claimed.status == RevisionStatus.BUILDING:
            self._keep(environment, inspected, configs)
            self._advance(RevisionStatus.AWAITING_DEPLOY)
            self._advance(RevisionStatus.DEPLOYING)
        else:
            self._prepare()
        self._switch(inspected, configs, bundles)

    def _fetch(self) -> None:
        """Fetch the source of a revision that has no archive yet. Later attempts and runners use the archive."""
        with connection() as conn:
            origin = sources.origin_of(conn, self._claimed.revision_id)
        if origin is not None:
            self._variables = sources.without_credentials(self._secrets)
        if self._claimed.archive_digest is not None:
            return
        if origin is None:
            raise BuildFailed("fetch", "the revision has no source", status="CREATE_FAILED")
        seconds = self._settings.build_timeout_seconds
        timeout = BuildFailed("time", f"the build took more than {seconds:.0f} s")
        with gevent.Timeout(seconds, timeout):
            self._claimed = sources.fetch(
                self._settings, self._claimed, origin, self._secrets, self.log.write
            )

    def _make(self) -> Environment:
        claimed = self._claimed
        assert claimed.archive_digest is not None
        plan = environments.Plan(
            deployment_id=claimed.deployment_id,
            digest=claimed.archive_digest,
            config_path=claimed.config.get("langgraph_config_path"),
            requirements=claimed.requirements,
            python_version=claimed.python_version,
            commands=self._commands,
            variables=self._variables,
        )
        return environments.make(
            self._settings,
            claimed.build_id,
            plan,
            write_line=self.log.write,
            find_requirements=self._find_requirements,
            deadline_seconds=self._settings.build_timeout_seconds,
        )

    def _find_requirements(self, inputs: str) -> str | None:
        """Return the requirements that a recent revision resolved from the same inputs; None if there is none."""
        with connection() as conn:
            earlier = environments.same_inputs(conn, self._claimed, inputs)
        if earlier is None:
            return None
        self._resolved_at = earlier.resolved_at
        return earlier.requirements

    def _reuse_build(self) -> None:
        """Reuse the build of an earlier revision with the same source, if a fresh one exists."""
        claimed = self._claimed
        if claimed.requirements is not None:
            return
        with connection() as conn:
            self._commands = environments.commands_of(conn, claimed.deployment_id)
            earlier = environments.same_source(conn, claimed, self._commands)
            if earlier is None:
                return
            revisions.reuse_build(conn, claimed, earlier.build_id)
        self.log.write("INFO", "the source is that of an earlier revision, and so is its environment")
        self._resolved_at = earlier.resolved_at
        self._claimed = dataclasses.replace(
            claimed,
            build_id=earlier.build_id,
            requirements=earlier.requirements,
            python_version=earlier.python_version,
        )

    def _inspect(self, environment: Environment) -> Inspected:
        """Return the description of the code, from an earlier inspection if possible. Raises BuildFailed."""
        claimed = self._claimed
        with connection() as conn:
            earlier = inspection.earlier_inspection(
                conn, claimed.deployment_id, claimed.revision_id, claimed.build_id, self._secrets
            )
        if earlier is not None and earlier.graphs.keys() == environment.manifest.graphs.keys():
            self.log.write("INFO", "its graphs have been loaded before, with the same variables")
            return earlier
        return inspection.inspect(
            self._settings, claimed.revision_id, environment, self._variables, self.log.write
        )

    def _bundle(self, environment: Environment) -> list[Bundle]:
        """Return the bundles of the project's components, those of an earlier revision with the same build if there are any."""
        claimed = self._claimed
        if environment.manifest.components is None:
            return []
        with connection() as conn:
            earlier = components.of_build(conn, claimed.deployment_id, claimed.build_id)
        return earlier or node_components.bundle(
            self._settings, claimed.deployment_id, environment, self._variables, self.log.write
        )

    def _keep(self, environment: Environment, inspected: Inspected, configs: Configs) -> None:
        """Store the resolved requirements and the manifest, from which any machine creates the same environment."""
        with connection() as conn:
            revisions.keep_artifact(
                conn,
                self._claimed,
                requirements=str(environment.requirements),
                python_version=environment.python_version,
                manifest={
                    "language": "python" if environment.node is None else "javascript",
                    "graphs": {name: dict(entry) for name, entry in environment.manifest.graphs.items()},
                    "inputs": environment.inputs,
                    "checkpointer": dict(environment.manifest.checkpointer),
                    "store": dict(environment.manifest.store),
                    "webhooks": dict(environment.manifest.webhooks),
                    "inbox": dict(environment.manifest.inbox),
                    "replay": dict(environment.manifest.replay),
                    "http": dict(inspected.http),
                    "langgraph_version": inspected.langgraph_version,
                    "configs": dict(configs),
                    "resolved_at": self._resolved_at,
                    "inspector": inspection.inspector(),
                },
            )

    def _advance(self, status: RevisionStatus) -> None:
        with connection() as conn:
            revisions.advance(conn, self._claimed, status)
        self.log.add_status(status)

    def _switch(self, inspected: Inspected, configs: Configs, bundles: list[Bundle]) -> None:
        """Make this revision serve. One transaction stores its end, graphs, user code, components, assistants and log."""
        claimed = self._claimed
        self._lease.release()
        with self.log.storing, connection() as conn:
            revisions.lock_deployment(conn, claimed.deployment_id)
            revisions.keep_user_code(conn, claimed, inspected.user_code)
            transitions = revisions.end(conn, claimed, RevisionStatus.DEPLOYED, None)
            components.store(conn, claimed.revision_id, bundles)
            self._count(conn, RevisionStatus.DEPLOYED)
            name = publish.publish(conn, claimed, inspected.graphs, configs)
            self.log.write("INFO", f"deployed at {self._settings.url.rstrip('/')}/d/{name}")
            self.log.store(conn)  # in the same transaction: a client that sees the end finds the whole log
        log.info("revision %s serves %s", claimed.revision_id, name)
        self.log.end(RevisionStatus.DEPLOYED)
        if claimed.preview is None:
            calls.announce(claimed.revision_id, claimed.pool)
        revision_events.announce(transitions)

    def _prepare(self) -> None:
        """Start a host of an already built revision before it serves, so that a rollback takes effect quickly."""
        claimed = self._claimed
        try:
            calls.prepare(claimed.deployment_id, claimed.revision_id, claimed.pool)
        except HostUnusable as error:
            self.log.write("WARNING", f"no graph host of it is ready yet: {error.message}")

    def _count(self, conn: Connection, status: RevisionStatus) -> None:
        folding.record_build(conn, status, time.monotonic() - self._began_at)

    def fail(self, failure: BuildFailed) -> None:
        """End the revision with the failed step and its reason. The revision that served before keeps serving."""
        claimed = self._claimed
        status = RevisionStatus(failure.status)
        if claimed.status == RevisionStatus.DEPLOYING:  # a redeploy of an already built revision
            status = RevisionStatus.DEPLOY_FAILED
        reason = self.log.shown(f"{failure.step}: {summary(failure.message)}")
        self.log.write("ERROR", f"step {failure.step!r} failed: {summary(failure.message)}")
        self._lease.release()
        with self.log.storing, connection() as conn:
            revisions.lock_deployment(conn, claimed.deployment_id)
            transitions = revisions.end(conn, claimed, status, reason)
            self._count(conn, status)
            self.log.store(conn)  # in the same transaction: a client that sees the end finds the whole log
        log.info("revision %s: %s: %s", claimed.revision_id, status, reason)
        self.log.end(status, reason)
        revision_events.announce(transitions)
        if claimed.build_id == claimed.revision_id:
            workspaces.remove(self._settings, claimed.build_id)


def _require_vectors() -> None:
    """Raise BuildFailed if the database has no pgvector."""
    with connection() as conn:
        if not store_vectors.is_prepared(conn):
            raise refused(
                "store.index: this installation's PostgreSQL has no 'vector' extension: install pgvector there"
                " and run the release step again, or leave the index out"
            )


def summary(message: str) -> str:
    """Return the first line of a message and the exception of its traceback. The log contains the whole message."""
    lines = [line for line in message.splitlines() if line.strip() and not NODE_FRAME.match(line)]
    if len(lines) < 2:
        return lines[0].strip() if lines else "failed"
    return f"{lines[0].strip()}: {_raised(lines).strip()}"


def _raised(lines: list[str]) -> str:
    """Return the line of a traceback that names the exception.

    An exception's message may have several lines, so this is the first unindented line after the last frame.
    """
    frame = max((at for at, line in enumerate(lines) if line.startswith(FRAME)), default=len(lines))
    return next((line for line in lines[frame:] if not line[0].isspace()), lines[-1])
