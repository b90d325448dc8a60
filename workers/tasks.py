"""The Celery tasks: each is a name and one call.

A task claims its rows first and skips those that another worker has claimed. Celery retries nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from uuid import UUID

import gevent

from shared.deployments import limits
from shared.deployments.limits import HostLimits
from shared.figures import prices
from shared.infra import broker, egress, encryption
from shared.infra.loops import forever
from shared.infra.postgres import connection
from shared.settings import Settings
from workers.builder import host_command, workspaces
from workers.builder.builder import Builder
from workers.builder.python import packages
from workers.celery_app import celery
from workers.consumer import MessageTask
from workers.heartbeat import Figures, HeartbeatSender
from workers.isolation import sandbox
from workers.runner.deployment_log import DeployLog
from workers.runner.host_pool import HostPool
from workers.runner.runner import Runner
from workers.upkeep.upkeep import Upkeep
from workers.upkeep.webhook_deliveries import Deliveries


class WorkerProcess:
    """The runner or builder of this process, with its heartbeats, upkeep and deliveries. Empty until it starts."""

    def __init__(self) -> None:
        self.runner: Runner | None = None
        self.builder: Builder | None = None
        self.upkeep: Upkeep | None = None
        self.heartbeats: HeartbeatSender | None = None
        self.deliveries: Deliveries | None = None

    def start(
        self, settings: Settings, *, is_runner: bool, slots: int, consume: Callable[[bool], None]
    ) -> None:
        """Start the parts of this process.

        `slots` tasks run at a time. `consume` starts (True) or stops the consumer of runs or builds.
        """
        encryption.configure(settings.encryption_keys)
        egress.configure(settings.allowed_addresses, allow_http=settings.allow_http)
        prices.configure(settings.model_prices)
        isolation = sandbox.settle(settings)
        if is_runner:
            deploy_log = DeployLog()
            hosts = HostPool(settings, host_command.host_of(settings, deploy_log), _limits_of)
            self.runner = runner = Runner(settings, hosts, deploy_log)
            gevent.spawn(runner.warm_up)
            figures: Figures = runner.figures
        else:
            self.builder = builder = Builder(settings)
            figures = lambda: {"slots": slots, "running": builder.building}  # noqa: E731  one of two
        self.heartbeats = HeartbeatSender(
            settings,
            kind="runner" if is_runner else "builder",
            isolation=isolation,
            figures=figures,
            is_full=lambda: MessageTask.executing >= slots,
            dies=self._die,
            on_drain=partial(self._set_drained, consume),
        )
        self.heartbeats.start()
        for tidy, pause, what in (
            (workspaces.remove_unneeded, workspaces.TIDY_SECONDS, "removing old environments"),
            (
                packages.remove_caches_of_deleted,
                packages.DELETED_SECONDS,
                "removing caches of deleted deployments",
            ),
            (packages.remove_unused, packages.TIDY_SECONDS, "removing unused packages and caches"),
        ):
            gevent.spawn_later(pause, forever, partial(tidy, settings), pause, what=what)
        self.upkeep = Upkeep(settings)
        self.upkeep.start()
        self.deliveries = Deliveries(settings.worker, settings.url)
        self.deliveries.start()

    def drain(self) -> None:
        """Accept no new work, because the worker stops."""
        if self.upkeep is not None:
            self.upkeep.stop()
        if self.heartbeats is not None:
            self.heartbeats.drain()
        if self.runner is not None:
            self.runner.drain()
        if self.builder is not None:
            self.builder.stop()
        if self.deliveries is not None:
            self.deliveries.drain()

    def close(self) -> None:
        """Release what this process owns, because it exits."""
        if self.upkeep is not None:
            self.upkeep.close()
        if self.runner is not None:
            self.runner.close()
        if self.heartbeats is not None:
            self.heartbeats.leave()

    def _set_drained(self, consume: Callable[[bool], None], is_drained: bool) -> None:
        """Drain this worker for an operator, or resume it."""
        if self.runner is not None:
            self.runner.set_drained(is_drained)
        if self.builder is not None:
            self.builder.is_drained = is_drained
        consume(not is_drained)

    def _die(self) -> None:
        """End the process because no messages reach it, so that its supervisor starts another."""
        self.close()
        logging.shutdown()  # flush buffered log lines
        os._exit(os.EX_UNAVAILABLE)


process = WorkerProcess()


def _limits_of(revision_id: UUID) -> HostLimits:
    with connection() as conn:
        return limits.of_hosts(conn, [revision_id])[revision_id]


@celery.task(name=broker.EXECUTE_RUNS, base=MessageTask)
def execute_runs(run_ids: list[str]) -> None:
    if process.runner is not None:
        process.runner.notify([UUID(run_id) for run_id in run_ids])


@celery.task(name=broker.PREPARE_HOSTS, base=MessageTask)
def prepare_hosts(revision_ids: list[str]) -> None:
    if process.runner is not None:
        process.runner.host_calls.prepare_all([UUID(revision_id) for revision_id in revision_ids])


@celery.task(name=broker.BUILD_REVISION, base=MessageTask)
def build_revisions(revision_ids: list[str]) -> None:
    if process.builder is not None:
        for revision_id in revision_ids:
            process.builder.build(UUID(revision_id))


@celery.task(name=broker.CANARY, base=MessageTask)
def canary() -> None:
    """Receive a canary that this process sent to itself."""
    if process.heartbeats is not None:
        process.heartbeats.canary_returned()


@celery.task(name=broker.SWEEP, base=MessageTask)
def sweep() -> None:
    """Start a round of upkeep at once, for beat. Upkeep does not depend on this notification."""
    if process.upkeep is not None:
        process.upkeep.wake()
