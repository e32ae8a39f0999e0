"""A proxy before a Redis server that can lose answers: the server carries a command out, the client hears nothing.

with ReplyLosingProxy(node.port) as proxy:
    proxy.lose_replies = True       # from now on a connection is closed when the server answers on it
    proxy.cut()                     # nothing passes any more in either direction, and nobody is told
    proxy.forget_connections()      # the same for those that are open, and new ones work
"""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class ReplyLosingProxy:
    def __init__(self, port: int) -> None:
        self.server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lose_replies = False
        self.lost = 0
        self._sockets: list[socket.socket] = [self._listener]
        self._forgotten: set[socket.socket] = set()
        self._passes = threading.Event()
        self._passes.set()

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._passes.set()

    def cut(self) -> None:
        """Holds back everything, as a partition of the network does, until `mend`."""
        self._passes.clear()

    def mend(self) -> None:
        self._passes.set()

    def forget_connections(self) -> None:
        """Drops what comes on those that are open, in either direction, as a router does that has lost their state."""
        self._forgotten.update(self._sockets[1:])

    def close_connections(self) -> None:
        """Closes those that are open. New ones go to `server_port`, as after a failover of an address."""
        for one in self._sockets[1:]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._passes.wait()
                try:
                    server = socket.create_connection(("127.0.0.1", self.server_port))
                except OSError:  # it is down
                    client.close()
                    continue
                self._sockets += [client, server]
                self._spawn(self._pass_commands, client, server)
                self._spawn(self._pass_replies, client, server)

    def _pass_commands(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                self._passes.wait()
                if client in self._forgotten:
                    continue
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _pass_replies(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self._passes.wait()
                if server in self._forgotten:
                    continue
                if self.lose_replies:
                    self.lost += 1
                    break
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _spawn(function: object, *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()  # type: ignore[arg-type]
