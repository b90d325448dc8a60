"""Inputs of LangGraph from the documents of runs and queries: config, metadata, command and tracing.

The deployment's variables decide whether runs are traced at all (`LANGSMITH_TRACING`, with its key).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.context import tracing_v2_enabled
from langgraph.types import Command, Send, StateSnapshot
from langsmith.run_helpers import tracing_context
from langsmith.utils import tracing_is_enabled

from .checkpoints.run_checkpoints import CHECKPOINT_KEYS
from .project.users import configurable_of, with_user

INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")


class UnknownInterruptError(Exception):
    """A strict resume does not match the interrupts that wait for an answer."""


class MissingNodeError(UnknownInterruptError):
    """The graph lacks the node that waits for an answer."""

    def __init__(self) -> None:
        super().__init__("The question is of a node that this revision of the graph does not have")


def run_metadata(spec: Mapping[str, Any], langgraph_version: str) -> dict[str, Any]:
    """Return the metadata of a run for its messages, tasks, events and checkpoints."""
    return {
        **((spec.get("config") or {}).get("metadata") or {}),
        **(spec.get("metadata") or {}),
        "run_id": str(spec["run_id"]),
        "thread_id": str(spec["thread_id"]),
        "graph_id": spec["graph_id"],
        "assistant_id": str(spec["assistant_id"]),
        "run_attempt": spec.get("attempt", 1),
        "langgraph_version": langgraph_version,
    }


def run_config(spec: Mapping[str, Any], metadata: Mapping[str, Any]) -> RunnableConfig:
    """Return the config that executes a run. `metadata` is the run's (`run_metadata`)."""
    requested = spec.get("config") or {}
    configurable = {**configurable_of(spec), "thread_id": str(spec["thread_id"])}
    if spec.get("resume_from_checkpoint"):
        for name in CHECKPOINT_KEYS:  # an earlier attempt has already continued from that checkpoint
            configurable.pop(name, None)
    config: RunnableConfig = {
        "tags": list(requested.get("tags") or ()),
        "metadata": {**(requested.get("metadata") or {}), **metadata},
        "configurable": with_user(configurable),
        "run_id": UUID(spec["run_id"]),
    }
    for key in ("recursion_limit", "max_concurrency"):
        if requested.get(key) is not None:
            config[key] = requested[key]
    if isinstance(requested.get("run_name"), str):
        config["run_name"] = requested["run_name"]
    return config


def query_config(document: Mapping[str, Any], checkpoint: Mapping[str, Any] | None = None) -> RunnableConfig:
    """Return the config that addresses a query's thread, or one of its checkpoints."""
    address = {key: (checkpoint or {}).get(key) for key in CHECKPOINT_KEYS}
    configurable = {
        **{key: value for key, value in configurable_of(document).items() if key not in CHECKPOINT_KEYS},
        **{key: value for key, value in address.items() if value},
        "thread_id": str(document["thread_id"]),
    }
    return cast("RunnableConfig", {**(document.get("config") or {}), "configurable": with_user(configurable)})


def command_of(command: dict[str, Any]) -> Command[Any] | None:
    """Return LangGraph's Command. An empty command gives None, which continues from the newest checkpoint."""
    if all(command.get(key) is None for key in ("update", "resume", "goto")):
        return None
    update = command.get("update")
    if isinstance(update, list):
        update = [tuple(pair) if isinstance(pair, list) else pair for pair in update]
    goto = command.get("goto")
    targets = goto if isinstance(goto, list) else [goto] if goto else []
    return Command(
        update=update,
        resume=command.get("resume"),
        goto=[Send(t["node"], t.get("input")) if isinstance(t, dict) else t for t in targets],
    )


def check_resume(resume: Any, state: StateSnapshot) -> None:
    """Raise UnknownInterruptError unless the resume answers waiting interrupts or continues from a breakpoint.

    Newer versions of LangGraph also have a strict resume. This check behaves the same with all supported versions.
    """
    pending = {interrupt.id for task in state.tasks for interrupt in task.interrupts}
    if isinstance(resume, dict) and all(INTERRUPT_ID.fullmatch(str(key)) for key in resume):
        if not resume:
            raise UnknownInterruptError("The resume map names no interrupt")
        unknown = sorted(str(key) for key in resume if key not in pending)
        if unknown:
            raise UnknownInterruptError(f"Unknown or already answered interrupt: {', '.join(unknown)}")
    elif len(pending) > 1:
        ids = ", ".join(sorted(pending))
        raise UnknownInterruptError(f"Several interrupts wait: the one that is meant must be named: {ids}")
    elif not state.next:
        raise UnknownInterruptError("Nothing waits for an answer")


@contextmanager
def traced_as(tracer: Mapping[str, Any] | None) -> Iterator[None]:
    """Trace the block with the caller's project and example. Without them the deployment's variables apply."""
    project, example = (tracer or {}).get("project_name"), (tracer or {}).get("example_id")
    if example and tracing_is_enabled():
        with tracing_v2_enabled(project, example_id=example):
            yield
    elif project:
        with tracing_context(project_name=project):
            yield
    else:
        yield
