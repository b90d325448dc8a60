"""The Celery tasks: each is a name and one call.

A task begins with a claim and returns silently when somebody else has it; Celery retries nothing.
"""

from __future__ import annotations

import logging
from uuid import UUID

import gevent

from shared import encryption, outgoing, queues
from shared.settings import Settings
from workers import environments, queries, sandbox, workspaces
from workers.builds import Builder
from workers.deploy_log import DeployLog
from workers.hosts import HostPool
from workers.runner import Runner
from workers.upkeep import Upkeep

log = logging.getLogger(__name__)

_runner: Runner | None = None
_builder: Builder | None = None
_upkeep: Upkeep | None = None


def start(settings: Settings, *, is_runner: bool) -> None:
    """Set up what the tasks of this process work with."""
    global _runner, _builder, _upkeep
    encryption.configure(settings.encryption_keys)
    outgoing.configure(settings.allowed_addresses, allow_http=settings.allow_http)
    sandbox.settle(settings)
    if is_runner:
        prepare = environments.host_of(settings, DeployLog())
        _runner = Runner(settings, HostPool(settings, prepare))
        gevent.spawn(_runner.warm_up)
    else:
        _builder = Builder(settings)
    gevent.spawn(workspaces.keep_tidy, settings)
    gevent.spawn(environments.keep_tidy, settings)
    _upkeep = Upkeep(settings)
    _upkeep.start()


def drain() -> None:
    """The worker stops: take nothing new."""
    if _runner is not None:
        _runner.drain()
    if _builder is not None:
        _builder.stop()


def close() -> None:
    """The process exits."""
    if _runner is not None:
        _runner.close()


@queues.celery.task(name=queues.EXECUTE_RUNS)
def execute_runs(run_ids: list[str]) -> None:
    if _runner is not None:
        _runner.ring([UUID(run_id) for run_id in run_ids])


@queues.celery.task(name=queues.ANSWER_QUERIES)
def answer_queries(query_ids: list[str]) -> None:
    if _runner is not None:
        queries.answer_all(_runner.hosts, [UUID(query_id) for query_id in query_ids])


@queues.celery.task(name=queues.BUILD_REVISION)
def build_revisions(revision_ids: list[str]) -> None:
    if _builder is not None:
        for revision_id in revision_ids:
            _builder.build(UUID(revision_id))


@queues.celery.task(name=queues.SWEEP)
def sweep() -> None:
    """Beat's bell: upkeep does not depend on it, it only makes a first round come sooner."""
    if _upkeep is not None:
        _upkeep.wake()
