"""Gives a process its tracer where spans are exported: the one way to the module that imports OpenTelemetry."""

from __future__ import annotations

from shared.infra import tracing
from shared.settings import BadSetting, Settings


def configure(settings: Settings, process: str) -> None:
    """Export the spans of this process, if the settings say where to; raises BadSetting where the library is lacking."""
    if settings.otlp_endpoint is None:
        return
    try:
        from shared.infra.otel import OtelTracer
    except ImportError as error:
        raise BadSetting(
            f"OTEL_EXPORTER_OTLP_ENDPOINT needs OpenTelemetry: install the extra `otel` ({error})"
        ) from error
    tracing.use(OtelTracer(settings.otlp_endpoint, process=process, instance=settings.worker))
