"""Connections for httpcore on the streams of asyncio: half the cost of those it comes with.

They neither resolve names nor retry. Whoever connects passes an address (see `connect.py`), or the host of a proxy.
"""

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpcore

BUFFER_BYTES = 4 << 10
"""What is read from a connection before somebody asks for it; twice as much stops it."""

UNSENT_BYTES_MAX = 64 << 10


class StreamsBackend(httpcore.AsyncNetworkBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - as above
    ) -> httpcore.AsyncNetworkStream:
        local = (local_address, 0) if local_address is not None else None
        with _faults_as(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(host, port, limit=BUFFER_BYTES, local_addr=local)
        return Stream(reader, writer)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Stream(httpcore.AsyncNetworkStream):
    """Sends what is written when somebody reads the answer: head and body of a small request in one packet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unsent = bytearray()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as above
        with _faults_as(httpcore.ReadTimeout, httpcore.ReadError):
            async with asyncio.timeout(timeout):
                if self._unsent:
                    with suppress(OSError):  # it may have answered before it closed the connection
                        await self._send()
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        self._unsent += buffer
        if len(self._unsent) >= UNSENT_BYTES_MAX:
            with _faults_as(httpcore.WriteTimeout, httpcore.WriteError):
                async with asyncio.timeout(timeout):
                    await self._send()

    async def _send(self) -> None:
        unsent, self._unsent = self._unsent, bytearray()
        self._writer.write(unsent)
        await self._writer.drain()

    async def aclose(self) -> None:
        transport = self._writer.transport
        transport.close()
        await asyncio.sleep(0)  # lets it send what it has
        transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore.AsyncNetworkStream:
        try:
            with _faults_as(httpcore.ConnectTimeout, httpcore.ConnectError):
                async with asyncio.timeout(timeout):
                    await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            await self.aclose()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._writer.get_extra_info(info) if info in ("ssl_object", "peername") else None


@contextmanager
def _faults_as(timeout: type[Exception], fault: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as late:
        raise timeout(str(late)) from late
    except OSError as broken:
        raise fault(str(broken)) from broken
