"""What the tests of this folder share: reading events both ways, and a way to a server that can be cut."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.server.server_process import Caller, Server, Tenant, answered

from codeq.wire import paths

Told = Callable[..., dict[str, str]]


def platform(server: Server) -> Caller:
    return Caller(server, server.token("ops", "admin", scopes=["codeq:admin", "codeq:platform"]))


def events(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("codeq-events").options(**options).load()


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def log_of(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    """What the server itself says of its first shard, as JSON."""
    found: list[dict[str, Any]] = []
    while True:
        page = answered(caller.get(paths.EVENTS, limit=50_000, **query), 200)
        found += page["events"]
        if page["nextOffset"] >= page["endOffset"]:
            return found
        query["offset"] = page["nextOffset"]


def enqueue(tenant: Tenant, count: int, command: str = "work") -> None:
    made = [{"command": command, "payload": n} for n in range(count)]
    answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": made}), 200)


class Relay:
    """A port that leads to another, until it is cut."""

    def __init__(self) -> None:
        self.port = 0
        self.target: int | None = None
        self.refused = 0
        """Calls that came since it was cut."""
        self._links: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def lead_to(self, port: int) -> None:
        self._close()
        self.target, self.refused = port, 0
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """From now on every connection is closed at once, those that are open and those that come."""
        self.target, self.refused = None, 0
        for link in self._links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self.cut()
        self._close()
        for link in self._links:
            link.close()

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                if self.target is None:
                    self.refused += 1
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # killed, and not cut yet; those that come later are to be answered all the same
                    near.close()
                    continue
                self._links += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for link in (source, target):
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay() -> Iterator[Relay]:
    made = Relay()
    try:
        yield made
    finally:
        made.end()
