"""A TCP port that forwards to a server, until the test cuts it."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Relay:
    """A port that forwards to another, until it is cut."""

    def __init__(self) -> None:
        self.port = 0
        self.target: int | None = None
        self.refused = 0
        """Connections that were refused since it was cut."""
        self._links: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def lead_to(self, port: int) -> None:
        self._close()
        self.target, self.refused = port, 0
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Closes every open connection, and every new one at once."""
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
                except OSError:  # the server was killed, and the relay is not cut yet
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
