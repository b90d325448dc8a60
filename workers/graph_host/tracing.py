"""LangSmith tracing of a run: the project and the dataset example that its caller named.

The deployment's variables decide whether runs are traced at all (`LANGSMITH_TRACING`, with its key).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.tracers.context import tracing_v2_enabled
from langsmith.run_helpers import tracing_context
from langsmith.utils import tracing_is_enabled


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
