"""Clients of a codeQ server: `Client` with blocking calls for any thread, `AsyncClient` with coroutines."""

import os
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from codeq.domain.errors import InvalidRequest
from codeq.sdk.backend import ClientOptions, Token
from codeq.sdk.blocking import BlockingVerbs, run_blocking
from codeq.sdk.deliveries import AsyncDeliveries, Deliveries
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.http import HttpBackend
from codeq.sdk.http_client import HttpClient
from codeq.sdk.subscriptions import AsyncSubscriptions, Subscriptions
from codeq.sdk.transport import Address, AsyncTransport, BlockingTransport, Transport, address_of
from codeq.sdk.verbs import Verbs
from codeq.wire.local_server import DEFAULT_URL, DEV_TOKEN, is_loopback
from codeq.wire.system import Backup

T = TypeVar("T")


class AsyncClient(Verbs):
    """The queues of the token's tenant, on the event loop of the caller. Use it with `async with`."""

    def __init__(
        self,
        url: str | None = None,
        token: Token | None = None,
        *,
        timeout: Seconds = 10,
        retry_for: Seconds = 30,
        ca_file: str | None = None,
    ) -> None:
        """`url` and `token` default to CODEQ_URL and CODEQ_TOKEN; without either, a server on this machine gets the
        token of `codeq serve --dev`. `token` may be a function, which is called again when
        the server refuses the last token. `retry_for` bounds how long a call is repeated while the server is
        unreachable or busy; `timeout` bounds one try, on top of the time that the call itself waits."""
        self.options = _options(url, token, timeout=timeout, retry_for=retry_for, ca_file=ca_file)
        self.url = self.options["url"]
        address = address_of(self.url, ca_file)
        self._http = _backend(AsyncTransport(address), address, self.options)
        self.webhooks = AsyncDeliveries(self._http.http)
        self.subscriptions = AsyncSubscriptions(self._http.http)
        super().__init__(self._http)

    async def backup(self, name: str) -> Backup:
        """Copies the data of all tenants into the new directory `name` below the server's `backup.path`. Needs the
        scopes `codeq:admin` and `codeq:platform`. The server stays in use. The copy has all that was acknowledged
        before."""
        return await self._http.backup(name)


class Client(BlockingVerbs):
    """The queues of the token's tenant, with blocking calls for any thread. Takes the arguments of `AsyncClient`."""

    def __init__(
        self,
        url: str | None = None,
        token: Token | None = None,
        *,
        timeout: Seconds = 10,
        retry_for: Seconds = 30,
        ca_file: str | None = None,
    ) -> None:
        self.options = _options(url, token, timeout=timeout, retry_for=retry_for, ca_file=ca_file)
        self.url = self.options["url"]
        address = address_of(self.url, ca_file)
        self._http = _backend(BlockingTransport(address), address, self.options)
        self.webhooks = Deliveries(AsyncDeliveries(self._http.http), self._block_on)
        self.subscriptions = Subscriptions(AsyncSubscriptions(self._http.http), self._block_on)
        super().__init__(Verbs(self._http))

    def backup(self, name: str) -> Backup:
        """As `AsyncClient.backup`."""
        return self._block_on(self._http.backup(name))

    def as_async(self) -> AsyncClient:
        """A client with coroutines for the same server and token. Close it when it is no longer needed."""
        return AsyncClient(**self.options)

    def _block_on(self, call: Coroutine[Any, Any, T]) -> T:
        return run_blocking(call)


def _options(
    url: str | None, token: Token | None, *, timeout: Seconds, retry_for: Seconds, ca_file: str | None
) -> ClientOptions:
    known_url = url or os.environ.get("CODEQ_URL") or DEFAULT_URL
    known = token or os.environ.get("CODEQ_TOKEN") or _dev_token(known_url)
    if not known:
        address_of(known_url, ca_file)
        raise InvalidRequest(f"{known_url} needs a token: pass token=..., or set CODEQ_TOKEN")
    return ClientOptions(url=known_url, token=known, timeout=timeout, retry_for=retry_for, ca_file=ca_file)


def _dev_token(url: str) -> str | None:
    """What a development server accepts; others refuse it. It is offered to this machine only."""
    try:
        return DEV_TOKEN if is_loopback(urlsplit(url).hostname or "") else None
    except ValueError:
        return None  # not an address, as is said next


def _backend(transport: Transport, address: Address, options: ClientOptions) -> HttpBackend:
    timeout, retry_for = options["timeout"], options["retry_for"]
    timeout_s, retry_s = milliseconds(timeout) / 1000, milliseconds(retry_for) / 1000
    if timeout_s <= 0 or retry_s < 0:
        raise InvalidRequest(f"timeout is more than 0 seconds, retry_for 0 or more, not {timeout} and {retry_for}")
    http = HttpClient(transport, address, options["token"], timeout_s=timeout_s, retry_s=retry_s)
    return HttpBackend(http, options)
