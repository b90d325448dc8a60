"""The tracer of this process, if spans are exported: if OTEL_EXPORTER_OTLP_ENDPOINT is set.

Otherwise OpenTelemetry is not imported (`shared/infra/otel.py`) and no spans are created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from shared.infra.trace_context import Context
from shared.setting_values import BadSetting
from shared.settings import Settings


class AnySpan(Protocol):
    """Interface of a started span."""

    @property
    def context(self) -> Context: ...

    def set(self, **attributes: Any) -> None: ...

    def end(self, *, error: str | None = None, at_ns: int | None = None) -> None: ...


class AnyTracer(Protocol):
    """Interface of a tracer."""

    def start(
        self,
        name: str,
        *,
        kind: str = "internal",
        parent: Context | None = None,
        context: Context | None = None,
        at_ns: int | None = None,
        **attributes: Any,
    ) -> AnySpan: ...

    def write(
        self,
        name: str,
        *,
        kind: str = "internal",
        parent: Context,
        context: Context,
        from_ns: int,
        until_ns: int,
        attributes: Mapping[str, Any],
        error: str | None = None,
    ) -> None: ...

    def samples(self, trace_id: int) -> bool: ...

    def flush(self) -> None: ...


_tracer: AnyTracer | None = None


def use(tracer: AnyTracer | None) -> None:
    """Set the tracer of the process."""
    global _tracer
    _tracer = tracer


def tracer() -> AnyTracer | None:
    """Return the tracer of this process, or None if no spans are exported."""
    return _tracer


def configure(settings: Settings, process: str) -> None:
    """Export this process's spans if the settings name an endpoint. Raises BadSetting without the library."""
    if settings.otlp_endpoint is None:
        return
    try:
        from shared.infra.otel import OtelTracer
    except ImportError as error:
        raise BadSetting(
            f"OTEL_EXPORTER_OTLP_ENDPOINT needs OpenTelemetry: install the extra `otel` ({error})"
        ) from error
    use(OtelTracer(settings.otlp_endpoint, process=process, instance=settings.worker))
