"""Hypothesis strategies for tasks with random fields, valid by the rules of the queue or not."""

from hypothesis import strategies as st

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.task import Move, Status, Task

times = st.integers(0, 1 << 47)
small = st.integers(0, 10_000)
texts = st.none() | st.text(max_size=20) | st.sampled_from(["", "é" * 16, "x" * 255, "x" * 256, "x" * 70_000])
backoffs = st.builds(Backoff, st.sampled_from(BackoffKind), small, small)
tasks = st.builds(
    Task,
    id=st.uuids().map(str), tenant=st.text(max_size=8), command=st.text(max_size=8), priority=st.integers(0, 9),
    status=st.sampled_from(Status), version=st.integers(0, (1 << 63) - 1), previous=small,
    move=st.sampled_from(Move), status_before=st.none() | st.sampled_from(Status), created_ms=times,
    updated_ms=times, visible_ms=times, attempts=small, max_attempts=small, deliveries=small, max_deliveries=small,
    lease_token=small, worker=texts, lease_until_ms=times, error=texts, last_error=texts, ended_ms=times,
    purge_ms=times, payload_bytes=small, trace_id=texts, backoff=st.none() | backoffs, has_webhook=st.booleans(),
    progress=texts, artifacts=small, artifact_bytes=times,
)  # fmt: skip
