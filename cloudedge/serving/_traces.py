"""Traces of predictions for OpenTelemetry: one span per request, a child of the caller's where the caller sends one.

Where spans go is the environment's choice, by OpenTelemetry's own variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ...).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from cloudedge.errors import ConfigError
from cloudedge.serving._engine import HttpAnswer, HttpCall

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["Traces", "pin_of"]

_SERVER_ERROR = 500


class Traces:
    """Makes a span of every prediction.

    Args:
        service: The name spans carry.
        provider: Who takes the spans; one that exports by OTLP over HTTP if left out.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(self, service: str, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import propagate, trace  # noqa: PLC0415 - an extra

            self._provider = provider or _exporting(service)
        except ImportError as error:
            raise ConfigError("traces need OpenTelemetry", hint="pip install 'cloudedge[otel]'") from error
        self._extract = propagate.extract
        self._kind = trace.SpanKind.SERVER
        self._failed = trace.StatusCode.ERROR
        self._tracer = self._provider.get_tracer("cloudedge.serving")

    async def around(self, call: HttpCall, answering: Coroutine[Any, Any, HttpAnswer]) -> HttpAnswer:
        """Answer a request inside a span."""
        path = call.path.partition("?")[0]
        span = self._tracer.start_span(
            f"{call.method} {path[:100]}",
            context=self._extract(call.headers),
            kind=self._kind,
            attributes={"http.request.method": call.method, "url.path": path[:200]},
        )
        try:
            answer = await answering
            span.set_attribute("http.response.status_code", answer.status)
            span.set_attribute("cloudedge.pin", pin_of(answer))
            if answer.status >= _SERVER_ERROR:
                span.set_status(self._failed)
            return answer
        finally:
            span.end()

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()


def pin_of(answer: HttpAnswer) -> str:
    """Return the version an answer says it comes from; empty if none does."""
    return answer.headers.get("X-Cloudedge-Pin") or answer.headers.get("cloudedge-pin", "")


def _exporting(service: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
