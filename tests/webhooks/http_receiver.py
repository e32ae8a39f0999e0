"""A receiver of webhooks in a thread: keeps what it got, by path, and answers as a test says."""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

WAIT_S = 30.0


class Got(NamedTuple):
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


Reply = tuple[int, Mapping[str, str]]


class HttpReceiver:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._got: defaultdict[str, list[Got]] = defaultdict(list)
        self._replies: dict[str, Callable[[int], Reply]] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._handle(self)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def answer(self, path: str, reply: Callable[[int], Reply]) -> None:
        """Answers the n-th request (from 1) for the path by `reply(n)`, which may block."""
        self._replies[path] = reply

    def got(self, path: str = "/hook") -> list[Got]:
        with self._changed:
            return list(self._got[path])

    def wait(self, number: int = 1, path: str = "/hook") -> list[Got]:
        """Returns what arrived at the path, once it is this many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._got[path]) >= number, WAIT_S), self._got[path]
            return list(self._got[path])

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"]))
        with self._changed:
            self._got[request.path].append(Got({k.lower(): v for k, v in request.headers.items()}, body))
            number = len(self._got[request.path])
            self._changed.notify_all()
        reply = self._replies.get(request.path)
        status, headers = reply(number) if reply is not None else (204, {})
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("content-length", "0")
        request.end_headers()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
