"""Spans for OpenTelemetry: one per request, verb and sweep, linked to the traces in which the tasks were created."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from codeq.domain.limits import TRACE_LINKS_MAX

_PROPAGATOR = TraceContextTextMapPropagator()
_NOTHING: AbstractContextManager[None] = nullcontext()


class Tracing:
    """Does nothing, and costs next to nothing, without a provider. Its tracers are `codeq/http`, `codeq/tasks`,
    `codeq/sweep` and `codeq/webhooks`."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self.is_on = provider is not None
        of = provider.get_tracer if provider is not None else trace.NoOpTracerProvider().get_tracer
        self._http, self._tasks, self._sweep = of("codeq/http"), of("codeq/tasks"), of("codeq/sweep")
        self._webhooks = of("codeq/webhooks")

    @contextmanager
    def request(self, method: str, route: str, path: str, headers: dict[bytes, bytes]) -> Iterator[Any]:
        if not self.is_on:
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
        with self._http.start_as_current_span(
            f"HTTP {method} {route}", parent, kind=SpanKind.SERVER, attributes=attributes
        ) as span:
            yield span

    def answered(self, span: Any, status: int) -> None:
        if span is not None:
            span.set_attribute("http.status_code", status)
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))

    def verb(self, name: str, trace_parents: Sequence[str] = (), **attributes: Any) -> AbstractContextManager[Any]:
        """Opens a span `codeq.task.<name>` with attributes `codeq.<key>`, linked to the traces of its tasks."""
        if not self.is_on:
            return _NOTHING
        named = {f"codeq.{key}": value for key, value in attributes.items() if value is not None}
        links = [trace.Link(context) for context in _contexts(trace_parents)]
        return self._tasks.start_as_current_span(f"codeq.task.{name}", links=links, attributes=named)

    def link(self, span: Any, trace_parents: Sequence[str | None]) -> None:
        """Links the span of a verb to tasks that are known only at its end."""
        if span is not None:
            for context in _contexts(trace_parents):
                span.add_link(context)

    def sweep(self, move: str, trace_parents: Sequence[str], tasks: int) -> AbstractContextManager[Any]:
        links = [trace.Link(context) for context in _contexts(trace_parents)]
        attributes = {"codeq.batch": tasks}
        return self._sweep.start_as_current_span(f"codeq.task.{move}", links=links, attributes=attributes)

    @contextmanager
    def webhook(
        self, kind: str, trace_parent: str | None, trace_state: str | None, *, host: str, attempt: int
    ) -> Iterator[dict[str, str]]:
        """Yields the trace headers of a webhook: of a span `codeq.webhook.<kind>` in the task's trace, or of the task
        itself if nothing is traced here."""
        carrier = {"traceparent": trace_parent or "", "tracestate": trace_state or ""}
        given = {name: value for name, value in carrier.items() if value and value.isascii() and value.isprintable()}
        if not self.is_on:
            yield given
            return
        attributes: dict[str, Any] = {
            "codeq.webhook.kind": kind,
            "codeq.webhook.host": host[:256],
            "codeq.webhook.attempt": attempt,
        }
        with self._webhooks.start_as_current_span(
            f"codeq.webhook.{kind}", _PROPAGATOR.extract(given, Context()), kind=SpanKind.CLIENT, attributes=attributes
        ):
            headers: dict[str, str] = {}
            _PROPAGATOR.inject(headers)
            yield headers

    def context(self) -> tuple[str | None, str | None]:
        """Returns `traceparent` and `tracestate` of the current span, to be stored with a task."""
        if not self.is_on:
            return None, None
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier.get("traceparent"), carrier.get("tracestate")

    def close(self) -> None:
        shut_down = getattr(self._provider, "shutdown", None)
        if shut_down is not None:
            shut_down()


def _contexts(trace_parents: Sequence[str | None]) -> list[trace.SpanContext]:
    """Returns the spans, each once; of many tasks, those of the first."""
    known = [parent for parent in dict.fromkeys(trace_parents) if parent][:TRACE_LINKS_MAX]
    spans = [trace.get_current_span(_PROPAGATOR.extract({"traceparent": parent}, Context())) for parent in known]
    return [span.get_span_context() for span in spans if span.get_span_context().is_valid]


def set_up(*, service: str, endpoint: str, insecure: bool, ratio: float) -> Tracing:
    """Sends spans to the collector, and registers provider and propagator for all libraries in this process."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - loads gRPC
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415

    provider = TracerProvider(
        resource=Resource.create({"service.name": service}), sampler=ParentBasedTraceIdRatio(ratio)
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=insecure)))
    trace.set_tracer_provider(provider)
    propagate.set_global_textmap(_PROPAGATOR)
    return Tracing(provider)
