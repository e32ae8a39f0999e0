"""Receivers of webhooks: a well-behaved one that keeps what it got, and raw ones that misbehave as a test says."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Received(Struct):
    path: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(head[0].split(" ")[1], headers, body)


@asynccontextmanager
async def raw_receiver(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Yields the URL of a receiver that does with each connection what `serve` does."""
    open_writers: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        open_writers.discard(writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    finally:
        server.close()
        for writer in list(open_writers):
            writer.transport.abort()
        await server.wait_closed()


def answering(response: bytes, got: list[Received] | None = None) -> Serve:
    """Reads the request and sends these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        if got is not None:
            got.append(request)
        writer.write(response)
        await writer.drain()

    return serve


def status(code: int, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {code} x", "content-length: 0", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"
