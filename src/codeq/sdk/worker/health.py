"""A page for probes: whether this worker claims and completes tasks."""

import asyncio
import contextlib
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.sdk.worker.outcomes import JobOutcome, OutcomeKind

_REQUEST_S_MAX = 5.0


class Counts(msgspec.Struct):
    """What happened to the jobs of the worker since it started."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    abandoned: int = 0
    lost: int = 0
    """Jobs whose lease was lost, or that were cancelled, while the worker held them."""
    refused: int = 0
    """Jobs whose outcome was refused, mostly because it came too late."""


BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""From a quick look-up to half an hour of rendering."""


_COMPLETE = OutcomeKind.COMPLETE


class CommandCounts(msgspec.Struct):
    """What happened to the jobs of one command, and how long their handlers took."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    abandoned: int = 0
    dropped: int = 0
    """Their lease was lost, or they were cancelled."""
    dead: int = 0
    """Of the retried ones: those that went to the dead-letter queue."""
    seconds: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """How many took up to each of `BUCKETS_S`, and how many took longer."""

    def add(self, outcome: JobOutcome, took_s: float | None) -> None:
        if outcome.kind is _COMPLETE:
            self.completed += 1
        else:
            field = _FIELDS[outcome.kind]
            setattr(self, field, getattr(self, field) + 1)
        if took_s is not None:
            self.seconds += took_s
            self.buckets[bisect_left(BUCKETS_S, took_s)] += 1


_FIELDS = {
    OutcomeKind.COMPLETE: "completed",
    OutcomeKind.FAIL: "failed",
    OutcomeKind.RETRY: "retried",
    OutcomeKind.ABANDON: "abandoned",
    OutcomeKind.DROP: "dropped",
}


async def serve_health(address: str, state: Callable[[], tuple[bool, dict[str, Any]]]) -> asyncio.Server:
    """Answers every request with the state: 200 while it is good, 503 while it is not; `/metrics` for Prometheus."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise InvalidRequest(f"health is host:port, not {address!r}")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_REQUEST_S_MAX):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_reply(head, *state()))
                    await writer.drain()
        finally:
            writer.close()

    try:
        return await asyncio.start_server(answer, host.strip("[]") or "127.0.0.1", int(port), limit=16_384)
    except (OSError, OverflowError) as fault:
        raise InvalidRequest(f"cannot serve health at {address}: {fault}") from None


def _reply(head: bytes, is_good: bool, shown: dict[str, Any]) -> bytes:
    status, kind, body = "200 OK", "application/json", msgspec.json.encode(shown)
    if head.split(b"\r\n")[0].partition(b" ")[2].startswith(b"/metrics"):
        kind, body = "text/plain; version=0.0.4", _metrics(is_good, shown)
    elif not is_good:
        status = "503 Service Unavailable"
    length = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{length}".encode() + body


def _metrics(is_good: bool, shown: dict[str, Any]) -> bytes:
    lines = [f"# TYPE codeq_worker_healthy gauge\ncodeq_worker_healthy {is_good:d}\n"]
    for name, value in shown.items():
        if isinstance(value, (int, float)):
            full, kind = f"codeq_worker_{name}", "gauge"
            if name in Counts.__struct_fields__:
                full, kind = f"{full}_total", "counter"
            lines.append(f"# TYPE {full} {kind}\n{full} {value}\n")
    lines.append(_command_metrics(shown["by_command"]))
    return "".join(lines).encode()


def _command_metrics(by_command: dict[str, CommandCounts]) -> str:
    """Commands match a strict pattern, so that they need no escaping here."""
    tasks, seconds = "codeq_worker_tasks_total", "codeq_worker_task_seconds"
    lines = [f"# TYPE {tasks} counter\n"]
    for command, counts in by_command.items():
        lines += [
            f'{tasks}{{command="{command}",outcome="{outcome}"}} {getattr(counts, outcome)}\n'
            for outcome in (*_FIELDS.values(), "dead")
        ]
    lines.append(f"# TYPE {seconds} histogram\n")
    for command, counts in by_command.items():
        below = 0
        for bound, number in zip(BUCKETS_S, counts.buckets[:-1], strict=True):
            below += number
            lines.append(f'{seconds}_bucket{{command="{command}",le="{bound:g}"}} {below}\n')
        lines.append(f'{seconds}_bucket{{command="{command}",le="+Inf"}} {sum(counts.buckets)}\n')
        lines.append(f'{seconds}_sum{{command="{command}"}} {counts.seconds:.6f}\n')
        lines.append(f'{seconds}_count{{command="{command}"}} {sum(counts.buckets)}\n')
    return "".join(lines)
