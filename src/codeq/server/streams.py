"""Request bodies and responses that are too long for memory, a piece at a time, at the speed of the slower side.

A body that nobody takes waits in the socket, and so in the client. A response is written a piece at a time, the next
when the client has taken most of the last.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from codeq.server import connection_bounds as bounds
from codeq.server.request import HttpRequest, HttpResponse
from codeq.wire.errors import TooSlow

if TYPE_CHECKING:
    from codeq.server.connection import Connection

TAKE_BYTES = 256 * 1024
"""Bytes of a body that are taken at once. In each body timeout so many must arrive: nine thousand a second."""


async def read_body(connection: "Connection", request: HttpRequest, most: int) -> bytes | None:
    """Returns the body of the current request, as soon as it is complete; None if it is longer than `most`."""
    if await _arrived(connection, request, most):
        return None
    return request.body if len(request.body) <= most else None


async def body_pieces(request: HttpRequest, timeout_s: float) -> AsyncIterator[bytes]:
    """Iterates over the body of the current request while it arrives. Raises TooSlow."""
    connection, reader = request.connection, request.connection.reader
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                is_ahead = await _arrived(connection, request, TAKE_BYTES)
        except TimeoutError:
            raise TooSlow(f"less than {TAKE_BYTES} bytes of the body arrived in {timeout_s:g} s") from None
        if not is_ahead:
            if request.body:
                yield request.body
            return
        piece = reader.take_body()
        connection.advance()
        yield piece


async def _arrived(connection: "Connection", request: HttpRequest, most: int) -> bool:
    """Waits until more than `most` bytes have arrived, and returns True, or until the body is complete."""
    if connection.is_lost:
        raise asyncio.CancelledError
    reader = connection.reader
    if reader.arriving is not request:
        return False
    if request.expects_continue:
        request.expects_continue = False
        connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    reader.body_max = most
    if reader.body_bytes <= most:
        ready = reader.body_ready = asyncio.get_running_loop().create_future()
        connection.advance()
        await ready
    return reader.arriving is request


async def send_pieces(request: HttpRequest, response: HttpResponse, idle_s: float) -> None:
    """Sends a response whose body is in pieces. Whatever ends it early aborts the connection: its length was sent."""
    connection = request.connection
    pieces = response.pieces
    assert pieces is not None  # noqa: S101 - the caller has looked
    try:
        is_last = connection.send(request, response)
        if is_last is None or request.method == "HEAD":
            return
        async for piece in pieces:
            if connection.is_lost:
                return
            connection.transport.write(piece)
            if connection.transport.get_write_buffer_size() > TAKE_BYTES:
                await _drained(connection, idle_s)
        connection.finish(request, is_last=is_last)
    except BaseException:
        connection.abort()
        raise
    finally:
        await pieces.aclose()


async def _drained(connection: "Connection", idle_s: float) -> None:
    """Waits until the client has taken most of what was written. Aborts a client that takes next to nothing."""
    unread = connection.transport.get_write_buffer_size()
    while connection.is_write_paused and not connection.is_lost:
        connection.resumed = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(idle_s):
                await connection.resumed
        except TimeoutError:
            left = connection.transport.get_write_buffer_size()
            if unread - left < bounds.READ_BYTES_MIN:
                connection.abort()
                raise TooSlow("the client does not read") from None
            unread = left
