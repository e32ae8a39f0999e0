"""Traces, where the program has them: the span that enqueues is the parent of the span that does the work."""

from collections.abc import Iterator
from contextlib import contextmanager

from codeq.domain.limits import TRACE_CHARS_MAX
from codeq.sdk.jobs import Job

try:
    from opentelemetry import context, propagate, trace
except ImportError:  # the library is optional: without it there is nothing to pass on
    context = propagate = trace = None  # type: ignore[assignment]

NO_TRACE: tuple[None, None] = (None, None)


def current_trace() -> tuple[str | None, str | None]:
    """The present span as `traceparent` and `tracestate`; None where there is none."""
    if trace is None or not context.get_current():  # an empty context is found out for a tenth of what a span costs
        return NO_TRACE
    if not trace.get_current_span().get_span_context().is_valid:
        return NO_TRACE
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    state = carrier.get("tracestate")
    if state is not None and len(state) > TRACE_CHARS_MAX:
        state = None  # a trace is no reason to lose a task
    return carrier.get("traceparent"), state


def header_lines(parent: str | None, state: str | None) -> str:
    """Header lines that carry a span to a server."""
    if parent is None:
        return ""
    return f"traceparent: {parent}\r\n" + (f"tracestate: {state}\r\n" if state else "")


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
