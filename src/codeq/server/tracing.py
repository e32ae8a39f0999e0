"""Spans for OpenTelemetry: one per request, one per verb, joined to the producer's trace through the task."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_NOTHING: AbstractContextManager[None] = nullcontext()


class Tracing:
    """Does nothing, and costs next to nothing, without a tracer."""

    def __init__(self, tracer: Tracer | None = None, provider: Any = None) -> None:
        self._tracer = tracer
        self._provider = provider

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    @contextmanager
    def request(self, method: str, route: str, path: str, headers: dict[bytes, bytes]) -> Iterator[Any]:
        if self._tracer is None:
            yield None
            return
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        parent: Context = _PROPAGATOR.extract(carrier)
        attributes = {
            "http.method": method,
            "http.route": route,
            "http.path": path[:256],
            "http.host": headers.get(b"host", b"").decode("latin-1")[:256],
        }
        with self._tracer.start_as_current_span(
            f"HTTP {method} {route}", parent, kind=SpanKind.SERVER, attributes=attributes
        ) as span:
            yield span

    def answered(self, span: Any, status: int) -> None:
        if span is not None:
            span.set_attribute("http.status_code", status)
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))

    def verb(self, name: str, trace_parent: str | None = None, **attributes: Any) -> AbstractContextManager[None]:
        """Opens a span `codeq.task.<name>` with attributes `codeq.<key>`; it links to the trace of the enqueue."""
        return _NOTHING if self._tracer is None else self._verb(self._tracer, name, trace_parent, attributes)

    @contextmanager
    def _verb(self, tracer: Tracer, name: str, trace_parent: str | None, attributes: dict[str, Any]) -> Iterator[None]:
        links = []
        if trace_parent:
            made_by = trace.get_current_span(_PROPAGATOR.extract({"traceparent": trace_parent})).get_span_context()
            links = [trace.Link(made_by)] if made_by.is_valid else []
        named = {f"codeq.{key}": value for key, value in attributes.items() if value is not None}
        with tracer.start_as_current_span(f"codeq.task.{name}", links=links, attributes=named):
            yield

    def context(self) -> tuple[str | None, str | None]:
        """Returns `traceparent` and `tracestate` of the current span, to be stored with a task."""
        if self._tracer is None:
            return None, None
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier.get("traceparent"), carrier.get("tracestate")

    def close(self) -> None:
        if self._provider is not None:
            self._provider.shutdown()


def set_up(*, service: str, endpoint: str, insecure: bool, ratio: float) -> Tracing:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - loads gRPC
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415

    provider = TracerProvider(
        resource=Resource.create({"service.name": service}), sampler=ParentBasedTraceIdRatio(ratio)
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=insecure)))
    return Tracing(provider.get_tracer("codeq"), provider)
