"""What enqueue to handler would take if the queue itself took no time: the same hops between the same processes.

A producer sends eight bytes to a server, which forces them to disk in a thread and hands them to a worker, which hands
them to a thread. On a shared machine this moves by a factor of two, and the queue's own figure moves with it.
"""

import asyncio
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import uvloop

_STAMP = struct.Struct("q")
_HELLO = b"worker"
_RECORD = bytes(600)


@contextmanager
def chain(directory: Path) -> "Iterator[Chain]":
    directory.mkdir()
    me = [sys.executable, str(Path(__file__).resolve())]
    with subprocess.Popen([*me, str(directory / "log")], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        port = int(server.stdout.readline())
        with subprocess.Popen([*me, str(port)], stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout
            worker.stdout.readline()
            try:
                with socket.create_connection(("127.0.0.1", port)) as link:
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    yield Chain(link, worker.stdout)
            finally:
                worker.terminate()
                server.terminate()


class Chain:
    def __init__(self, link: socket.socket, said: Any) -> None:
        self._link = link
        self._said = said

    def pass_ms(self) -> float:
        """From here to the worker's thread, once."""
        self._link.sendall(_STAMP.pack(time.time_ns()))
        self._link.recv(16)
        return float(self._said.readline())


async def _serve(log: str) -> None:
    loop = asyncio.get_running_loop()
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    orders: SimpleQueue[tuple[bytes, asyncio.Transport]] = SimpleQueue()
    workers: list[asyncio.Transport] = []

    def answer(stamp: bytes, producer: asyncio.Transport) -> None:
        workers[0].write(stamp)
        producer.write(b"done")

    def flush() -> None:
        while True:
            stamp, producer = orders.get()
            os.write(file, _RECORD)
            os.fdatasync(file)
            loop.call_soon_threadsafe(answer, stamp, producer)

    class Link(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            if data == _HELLO:
                workers.append(self.transport)
                self.transport.write(b"welcome")
            else:
                orders.put((data, self.transport))

    threading.Thread(target=flush, daemon=True).start()
    server = await loop.create_server(Link, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _work(port: int) -> None:
    loop = asyncio.get_running_loop()
    stamps: SimpleQueue[bytes] = SimpleQueue()

    def handle() -> None:
        while True:
            data = stamps.get()
            now_ns = time.time_ns()
            print("" if len(data) != _STAMP.size else (now_ns - _STAMP.unpack(data)[0]) / 1e6, flush=True)

    class Link(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            stamps.put(data)

    threading.Thread(target=handle, daemon=True).start()
    transport, _ = await loop.create_connection(Link, "127.0.0.1", port)
    transport.write(_HELLO)
    await asyncio.Event().wait()


if __name__ == "__main__":
    given = sys.argv[1]
    uvloop.run(_work(int(given)) if given.isdigit() else _serve(given))
