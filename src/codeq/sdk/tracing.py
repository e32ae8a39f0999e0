"""Carries OpenTelemetry traces through the queue: the span that enqueues is the parent of the span of the handler."""

from contextlib import AbstractContextManager, nullcontext

from codeq.domain.limits import TRACE_CHARS_MAX
from codeq.sdk.jobs import Job

try:
    from opentelemetry import context, propagate, trace
except ImportError:  # the library is optional
    context = propagate = trace = None  # type: ignore[assignment]

NO_TRACE: tuple[None, None] = (None, None)
_NO_SPAN = nullcontext()


def current_trace() -> tuple[str | None, str | None]:
    """The current span as `traceparent` and `tracestate`; None for both if there is none."""
    if trace is None or not context.get_current():  # checking the context costs a tenth of getting a span
        return NO_TRACE
    if not trace.get_current_span().get_span_context().is_valid:
        return NO_TRACE
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    state = carrier.get("tracestate")
    if state is not None and len(state) > TRACE_CHARS_MAX:
        state = None  # rather than have the task refused
    return carrier.get("traceparent"), state


def header_lines(parent: str | None, state: str | None) -> str:
    """The header lines that carry a span to a server."""
    if parent is None:
        return ""
    return f"traceparent: {parent}\r\n" + (f"tracestate: {state}\r\n" if state else "")


class _Tracing:
    is_set_up = False


def look_for_tracing() -> None:
    """Notes whether the program has set up tracing. Asking for each job takes a twentieth of what a job costs."""
    _Tracing.is_set_up = trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def job_span(job: Job) -> AbstractContextManager[object]:
    """A span for the work on a job, as part of its producer's trace, if `look_for_tracing` has found tracing."""
    if not _Tracing.is_set_up:
        return _NO_SPAN
    carrier = {"traceparent": job.trace_parent or "", "tracestate": job.trace_state or ""}
    attributes: dict[str, str | int] = {
        "codeq.task_id": job.id,
        "codeq.command": job.command,
        "codeq.attempt": job.attempt,
    }
    span: AbstractContextManager[object] = trace.get_tracer("codeq/worker").start_as_current_span(
        f"codeq.work {job.command}",
        context=propagate.extract(carrier),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    )
    return span
