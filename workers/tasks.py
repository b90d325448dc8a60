"""The parts of a worker process (`WorkerProcess`), and the Celery tasks: each is a name and one call to a part.

The called part claims rows first and skips those that another worker has claimed. Celery retries nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

import gevent

from shared.figures import usage
from shared.infra import broker, egress, encryption
from shared.infra.loops import forever
from shared.settings import Settings
from workers.builder import host_command, workspaces
from workers.builder.builder import Builder
from workers.builder.python import packages
from workers.celery_app import celery
from workers.consumer import MessageTask
from workers.heartbeat import HeartbeatSender
from workers.isolation import sandbox
from workers.isolation.levels import Isolation
from workers.runner.deployment_log import DeployLog
from workers.runner.host_pool import HostPool
from workers.runner.runner import Runner
from workers.upkeep.upkeep import Upkeep
from workers.upkeep.webhook_deliveries import Deliveries


class WorkerProcess:
    """The runner or builder of this process, with its heartbeats, upkeep and deliveries. Empty until it starts."""

    kind: str  # "runner" or "builder"
    isolation: Isolation

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
        usage.configure_prices(settings.model_prices)
        self.kind = "runner" if is_runner else "builder"
        self.isolation = sandbox.settle(settings)
        self._slots, self._consume = slots, consume
        if is_runner:
            deploy_log = DeployLog()
            hosts = HostPool(settings, partial(host_command.prepare_host, settings, deploy_log))
            self.runner = Runner(settings, hosts, deploy_log)
            gevent.spawn(self.runner.warm_up)
        else:
            self.builder = Builder(settings)
        self.heartbeats = HeartbeatSender(settings, self)
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

    # as the process that the heartbeats describe

    @property
    def is_full(self) -> bool:
        return MessageTask.executing >= self._slots

    def figures(self) -> Mapping[str, Any]:
        if self.runner is not None:
            self.runner.learn_limits()  # with each heartbeat
            return self.runner.figures()
        return {"slots": self._slots, "running": self.builder.building if self.builder is not None else 0}

    def set_drained(self, is_drained: bool) -> None:
        if self.runner is not None:
            self.runner.set_drained(is_drained)
        if self.builder is not None:
            self.builder.is_drained = is_drained
        self._consume(not is_drained)

    def die(self) -> None:
        self.close()
        logging.shutdown()  # flush buffered log lines
        os._exit(os.EX_UNAVAILABLE)


process = WorkerProcess()


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
