"""Whether what was sent over a connection has arrived, as far as TCP can tell."""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codeq.server.connection import Connection

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.001, 0.1


async def confirm(connection: "Connection") -> None:
    """Closes the connection once the client has acknowledged its responses. Calls what it has for the case that they
    are lost: the client resets, or takes too long."""
    transport = connection.transport
    if not await is_delivered(transport, lambda: connection.is_lost or transport.is_closing()):
        for call in connection.on_undelivered:
            await call()
    transport.close()


async def is_delivered(transport: asyncio.Transport, is_lost: Callable[[], bool]) -> bool:
    """Returns whether the other side has acknowledged everything that was sent; False once it resets or is lost.

    Where the system does not tell what is acknowledged, what has been sent counts as delivered.
    """
    peer = transport.get_extra_info("socket")
    pause_s = _PAUSE_S_MIN
    while not is_lost():
        left = transport.get_write_buffer_size() + _unacknowledged(peer.fileno())
        if peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return False
        if not left:
            return True
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
    return False


def _unacknowledged(descriptor: int) -> int:
    """Returns the bytes in the socket's send queue, which Linux keeps until they are acknowledged."""
    with contextlib.suppress(OSError):
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, b"\0" * 4))[0])
    return 0
