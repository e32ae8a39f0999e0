"""A proxy between a client and a server that can lose everything: bytes vanish, and neither side gets an error.

    with BlackholeProxy(server.port) as proxy:
        client = codeq.Client(proxy.url, token)
        proxy.cut()                     # bytes vanish; connections stay open, new ones are accepted and get no answer
        proxy.restore()                 # what was under way is lost; new connections work again

For a proxy that answers with errors see tests/sdk. `delay_s` delays what the server sends.
"""

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self


class BlackholeProxy:
    def __init__(self, port: int) -> None:
        self._port = port
        self._is_cut = False
        self._is_closed = False
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.delay_s = 0.0
        self.answers = 0
        """How often the server has sent something."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        self._is_cut = True

    def restore(self) -> None:
        with self._lock:
            links = list(self._links)
            self._is_cut = False
        for link in links:
            _shut(link)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        self._is_closed = True
        _shut(self._listener)
        self.restore()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port), 5)
            except OSError:
                if not self._is_closed:
                    near.close()  # the server is away
                continue
            with self._lock:
                self._links |= {near, far}
            both = [threading.Thread(target=self._pass, args=ends, daemon=True) for ends in ((near, far), (far, near))]
            self._threads += both
            for thread in both:
                thread.start()
            threading.Thread(target=self._close_both, args=(both, near, far), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        is_answer = source.getpeername()[1] == self._port
        with contextlib.suppress(OSError):
            source.settimeout(None)
            while data := source.recv(65536):
                if is_answer and self.delay_s:
                    self.answers += 1
                    time.sleep(self.delay_s)
                if not self._is_cut:
                    target.sendall(data)
        if not self._is_cut:
            _shut(target)

    def _close_both(self, both: list[threading.Thread], near: socket.socket, far: socket.socket) -> None:
        for thread in both:
            thread.join()
        with self._lock:
            self._links -= {near, far}
        near.close()
        far.close()


def _shut(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
