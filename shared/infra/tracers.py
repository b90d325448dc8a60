"""Configuring a process's tracer, if spans are exported. No other module imports `shared/infra/otel.py`."""

from __future__ import annotations

from shared.infra import tracing
from shared.setting_values import BadSetting
from shared.settings import Settings


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
    tracing.use(OtelTracer(settings.otlp_endpoint, process=process, instance=settings.worker))
