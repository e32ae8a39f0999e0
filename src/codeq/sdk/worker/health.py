"""A page for probes: whether this worker claims and completes tasks."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from codeq.domain.errors import InvalidRequest

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
    return "".join(lines).encode()
