"""Traces, where the program has them: the span that enqueues is the parent of the span that does the work."""

from collections.abc import Iterator
from contextlib import contextmanager

from codeq.sdk.jobs import Job

try:
    from opentelemetry import propagate, trace
except ImportError:  # the library is optional: without it there is nothing to pass on
    propagate = trace = None  # type: ignore[assignment]


def current_context() -> str:
    """Header lines that carry the current span, if there is one."""
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return ""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return "".join([f"{name}: {value}\r\n" for name, value in carrier.items() if name in ("traceparent", "tracestate")])


@contextmanager
def handling(job: Job) -> Iterator[None]:
    """A span around the work on a job, continuing its producer's trace."""
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield
        return
    carrier = {"traceparent": job.trace_parent or "", "tracestate": job.trace_state or ""}
    attributes: dict[str, str | int] = {
        "codeq.task_id": job.id,
        "codeq.command": job.command,
        "codeq.attempt": job.attempt,
    }
    with trace.get_tracer("codeq.worker").start_as_current_span(
        f"codeq.work {job.command}",
        context=propagate.extract(carrier),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    ):
        yield
