"""A receiver of notifications in a thread: keeps what each path got, and lets a test wait for it."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

WAIT_S_MAX = 60.0


class Got(NamedTuple):
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes


class Receiver:
    def __init__(self, base: str) -> None:
        self.base = base
        self._got: defaultdict[str, list[Got]] = defaultdict(list)
        self._changed = threading.Condition()

    def url(self, name: str) -> str:
        return f"{self.base}/{name}"

    def add(self, name: str, got: Got) -> None:
        with self._changed:
            self._got[name].append(got)
            self._changed.notify_all()

    def of(self, name: str) -> list[Got]:
        with self._changed:
            return list(self._got[name])

    def counts(self) -> dict[str, int]:
        with self._changed:
            return {name: len(got) for name, got in self._got.items() if got}

    def wait(self, is_enough: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        with self._changed:
            found = self._changed.wait_for(
                lambda: is_enough({name: len(got) for name, got in self._got.items()}), WAIT_S_MAX
            )
            assert found, f"only { {name: len(got) for name, got in self._got.items()} }"
        return self.counts()

    def wait_for(self, name: str, number: int = 1) -> list[Got]:
        self.wait(lambda counts: counts.get(name, 0) >= number)
        return self.of(name)


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(204)
            self.end_headers()
            receiver.add(self.path.strip("/"), Got(headers, json.loads(raw), raw))

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the standard library
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

    http = Server(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
