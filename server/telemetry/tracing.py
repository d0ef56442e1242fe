"""OpenTelemetry tracing, configured by its standard environment variables."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from server.generation.generation_request import GenerationRequest
from server.startup.logs import log
from server.startup.version import eagre_version
from server.telemetry.request_span import ContentSpan, RequestSpan
from server.telemetry.trace_context import caller

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

EXTRA = "pip install 'eagre[otel]'"
CLOSE_TIMEOUT_S = 2.0  # for the spans that wait when the server ends
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class Tracing:
    """Starts the spans of one server's requests. The library exports them in a thread of its own."""

    def __init__(self, provider: TracerProvider, *, captures_content: bool = False) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("eagre", eagre_version())
        self._captures_content = captures_content

    def span(self, request: GenerationRequest, model: str, request_ids: Sequence[str]) -> RequestSpan:
        """The span of a request, below that of the caller's trace."""
        kind = ContentSpan if self._captures_content else RequestSpan
        return kind(self._tracer, _parent(), request, model, request_ids)

    def close(self) -> None:
        """Exports what waits, for no longer than CLOSE_TIMEOUT_S; a collector that does not answer holds up nothing."""
        ending = threading.Thread(target=self._provider.shutdown, name="eagre-tracing-end", daemon=True)
        ending.start()
        ending.join(CLOSE_TIMEOUT_S)


def open_tracing(environ: Mapping[str, str]) -> Tracing | None:
    """The tracing that the environment configures; None where it configures none, or the library is not installed.

    `OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`) or `OTEL_TRACES_EXPORTER` switches traces on,
    `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` off.
    """
    wanted = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    is_asked = bool(wanted) or any(environ.get(name) for name in _ENDPOINTS)
    if not is_asked or wanted == "none" or _is_true(environ.get("OTEL_SDK_DISABLED")):
        return None
    try:
        exporter = _exporter(wanted or "otlp", environ)
        provider = _provider(exporter, environ)
    except ImportError as error:
        log.error("tracing_off", reason=f"{error.name} is not installed", install=EXTRA)
        return None
    except ValueError as error:
        log.error("tracing_off", reason=str(error))
        return None
    log.info("tracing_on", exporter=type(exporter).__name__)
    return Tracing(provider, captures_content=_is_true(environ.get(_CONTENT)))


def _exporter(wanted: str, environ: Mapping[str, str]) -> SpanExporter:
    """Raises ImportError where the exporter's package is missing, ValueError where there is none of this name."""
    if wanted == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if wanted != "otlp":
        raise ValueError(f"OTEL_TRACES_EXPORTER is {wanted!r}; it must be otlp, console or none")
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    match protocol or "http/protobuf":
        case "http/protobuf":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter: SpanExporter = OTLPSpanExporter()  # mypy knows nothing of it where it is not installed
        case "grpc":  # the extra leaves it out, because it is large
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

            exporter = GrpcExporter()
        case other:
            raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {other!r}; it must be http/protobuf or grpc")
    return exporter


def _provider(exporter: SpanExporter, environ: Mapping[str, str]) -> TracerProvider:
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    own = {SERVICE_VERSION: eagre_version()}
    if "OTEL_SERVICE_NAME" not in environ and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        own[SERVICE_NAME] = "eagre"
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _parent() -> Context:
    """The context that has the caller's span; an empty one where there is none."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    known = caller()
    if known is None:
        return Context()
    carrier = {"traceparent": known.traceparent}
    if known.tracestate is not None:
        carrier["tracestate"] = known.tracestate
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _is_true(value: str | None) -> bool:
    return value is not None and value.strip().lower() == "true"
