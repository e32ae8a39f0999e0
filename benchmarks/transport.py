"""What one HTTP request costs the program that makes it: our transport beside general client libraries.

A keep-alive POST of 200 bytes to a server in another process that answers at once. Figures are CPU time of this process
per request, all in the same run, in turns, the least of several rounds. Run it with `python -P`: without
-P, `http.py` beside this file would stand before the standard one.
"""

import asyncio
import http.client
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import httpx
from rich.console import Console
from rich.table import Table

from codeq.sdk.transport import AsyncTransport, BlockingTransport, address_of

REQUESTS, ROUNDS = 2000, 5
BODY = b"x" * 200
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
HEAD = "POST /tasks HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer t\r\ncontent-length: {}\r\n\r\n"
REQUEST = HEAD.format(len(BODY)).encode() + BODY


class ResponderProtocol(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.received.endswith(BODY):  # headers and body may come in two pieces
            self.received = b""
            self.transport.write(ANSWER)  # type: ignore[attr-defined]


def serve(port_pipe: Connection) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(ResponderProtocol, "127.0.0.1", 0)
        port_pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def with_httpx(url: str) -> None:
    with httpx.Client(base_url=url, headers={"authorization": "Bearer t"}, trust_env=False) as client:
        for _ in range(REQUESTS):
            assert client.post("/tasks", content=BODY).content == b"{}"


def with_async_httpx(url: str) -> None:
    async def run() -> None:
        async with httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer t"}, trust_env=False) as client:
            for _ in range(REQUESTS):
                assert (await client.post("/tasks", content=BODY)).content == b"{}"

    asyncio.run(run())


def with_standard_library(url: str) -> None:
    link = http.client.HTTPConnection(url.removeprefix("http://"))
    for _ in range(REQUESTS):
        link.request("POST", "/tasks", BODY, {"authorization": "Bearer t"})
        assert link.getresponse().read() == b"{}"
    link.close()


def with_ours(url: str) -> None:
    transport = BlockingTransport(address_of(url))
    for _ in range(REQUESTS):
        try:
            transport.exchange(REQUEST, 10).send(None)
        except StopIteration as end:
            answer = end.value
        assert answer.body == b"{}"


def with_ours_async(url: str) -> None:
    async def run() -> None:
        transport = AsyncTransport(address_of(url))
        for _ in range(REQUESTS):
            assert (await transport.exchange(REQUEST, 10)).body == b"{}"
        await transport.close()

    asyncio.run(run())


WAYS: dict[str, Callable[[str], None]] = {
    "codeQ, blocking": with_ours,
    "http.client": with_standard_library,
    "httpx.Client": with_httpx,
    "codeQ, awaited": with_ours_async,
    "httpx.AsyncClient": with_async_httpx,
}


def main() -> None:
    told, tell = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(tell,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{told.recv()}"
    least_us = dict.fromkeys(WAYS, float("inf"))
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            before_s = time.process_time()
            way(url)
            least_us[name] = min(least_us[name], (time.process_time() - before_s) / REQUESTS * 1e6)
    server.kill()
    shown = Table("client", "CPU us per request", "against ours", box=None)
    for name, cost_us in least_us.items():
        ours_us = least_us["codeQ, awaited" if "awaited" in name or "Async" in name else "codeQ, blocking"]
        shown.add_row(name, f"{cost_us:.0f}", f"{cost_us / ours_us:.1f} x")
    Console().print(shown)


if __name__ == "__main__":
    main()
