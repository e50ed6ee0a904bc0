"""Traces of predictions for OpenTelemetry: one span per request, a child of the caller's span if the caller sends one.

OpenTelemetry's own environment variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ...) choose the destination of spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudedge.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["Traces"]

_LONGEST_NAME = 120


class Traces:
    """Makes a span of every prediction.

    Args:
        service: The service name of the spans.
        provider: Receives the spans; one that exports by OTLP over HTTP if left out.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(self, service: str, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import propagate, trace  # noqa: PLC0415 - an extra

            self._provider = provider or _exporting(service)
        except ImportError as error:
            raise ConfigError("traces need OpenTelemetry", hint="Run `pip install 'cloudedge[otel]'`.") from error
        self._extract = propagate.extract
        self._kind = trace.SpanKind.SERVER
        self._failed = trace.StatusCode.ERROR
        self._tracer = self._provider.get_tracer("cloudedge.serving")

    def begin(self, name: str, headers: Mapping[str, str], attributes: Mapping[str, str]) -> Any:
        """Begin a span, a child of the span in the headers if there is one."""
        return self._tracer.start_span(
            name[:_LONGEST_NAME], context=self._extract(headers), kind=self._kind, attributes=attributes
        )

    def end(self, span: Any, attributes: Mapping[str, int | str], *, has_failed: bool) -> None:
        """End a span with its outcome."""
        for name, value in attributes.items():
            span.set_attribute(name, value)
        if has_failed:
            span.set_status(self._failed)
        span.end()

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


def _exporting(service: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
