"""The four kinds of clients with the same verbs: blocking or async, of a server or local; all called blocking."""

import asyncio
import threading
from collections.abc import Coroutine
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.server.server_process import Server

import codeq
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.verbs import Verbs
from codeq.server.auth.principal import WORKER_SCOPES

KINDS = ("Client", "AsyncClient", "open", "open_async")
WORKER = "tester"
"""On a server the worker is who the token says; here the token says what the others call themselves."""

T = TypeVar("T")
_numbers = count(1)


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(verb, self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class OnLoop(BlockingVerbs):
    """Awaited verbs, called from a test that is not."""

    def __init__(self, verbs: Verbs, loop: Loop) -> None:
        super().__init__(verbs)
        self._loop = loop

    def _block_on(self, verb: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(verb)


class Connect:
    """Makes clients of one kind, and closes them in the end."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._loop: Loop | None = None
        self._clients: list[BlockingVerbs] = []

    def __call__(self, url: str, token: Any = "any", **options: Any) -> BlockingVerbs:
        client: BlockingVerbs
        if self.kind == "Client":
            client = codeq.Client(url, token, **options)
        else:
            self._loop = self._loop or Loop()
            client = OnLoop(codeq.AsyncClient(url, token, **options), self._loop)
        self._clients.append(client)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        for client in self._clients:
            client.close()
        if self._loop is not None:
            self._loop.close()


class Clients:
    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.loop = Loop()
        self._plain = codeq.open(folder / "plain", durability="process")
        self._awaited = self.loop.run(codeq.open_async(folder / "awaited", durability="process"))
        self._clients: list[BlockingVerbs] = []

    def queue(self, kind: str, tenant: str | None = None) -> BlockingVerbs:
        """The queues of the tenant; of a new one, if it is given no name."""
        tenant = tenant or f"tenant-{next(_numbers)}"
        if kind == "open":
            return self._plain.for_tenant(tenant)
        if kind == "open_async":
            return OnLoop(self._awaited.for_tenant(tenant), self.loop)
        token = token_for(self.server, tenant)
        client: BlockingVerbs
        if kind == "Client":
            client = codeq.Client(self.server.base, token)
        else:
            client = OnLoop(codeq.AsyncClient(self.server.base, token), self.loop)
        self._clients.append(client)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        for client in self._clients:
            client.close()
        self.loop.run(self._awaited.close())
        self._plain.close()
        self.loop.close()


def token_for(server: Server, tenant: str | None = None) -> str:
    """A token that may do everything for one tenant, a new one if it is given no name."""
    scopes = [*sorted(WORKER_SCOPES), "codeq:admin", "codeq:events"]
    return server.token(tenant or f"tenant-{next(_numbers)}", "worker", subject=WORKER, scopes=scopes)
