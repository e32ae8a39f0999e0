"""A codeQ server from Python: `Client` for plain calls from any thread, `AsyncClient` to be awaited."""

import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from codeq.domain.errors import InvalidRequest
from codeq.sdk.blocking import BlockingVerbs, run_blocking
from codeq.sdk.http import HttpBackend
from codeq.sdk.http_client import HttpClient, Token
from codeq.sdk.transport import Address, AsyncTransport, BlockingTransport, Transport, address_of
from codeq.sdk.verbs import Seconds, Verbs, milliseconds
from codeq.wire.local_server import DEFAULT_URL as DEFAULT_URL  # noqa: PLC0414 - the pipeline imports it from here

Done = TypeVar("Done")


class AsyncClient(Verbs):
    """The queues of the token's tenant, on the event loop that calls. Use it with `async with`."""

    def __init__(
        self,
        url: str | None = None,
        token: Token | None = None,
        *,
        timeout: Seconds = 10,
        retry_for: Seconds = 30,
        ca_file: str | None = None,
    ) -> None:
        """`url` and `token` are taken from CODEQ_URL and CODEQ_TOKEN if not given. `token` may be a function, which is
        asked again when the server refuses the last one. `retry_for` bounds how long a call is repeated while the
        server cannot be reached or is busy; `timeout` bounds one try, on top of what the call itself waits."""
        address, known = _server(url, token, ca_file)
        self.options: dict[str, Any] = {"token": known, "timeout": timeout, "retry_for": retry_for, "ca_file": ca_file}
        self.url = _url(url)
        super().__init__(_backend(AsyncTransport(address), address, **self.options))


class Client(BlockingVerbs):
    """The queues of the token's tenant, for plain calls from any thread. Takes what `AsyncClient` takes."""

    def __init__(
        self,
        url: str | None = None,
        token: Token | None = None,
        *,
        timeout: Seconds = 10,
        retry_for: Seconds = 30,
        ca_file: str | None = None,
    ) -> None:
        address, known = _server(url, token, ca_file)
        self.options: dict[str, Any] = {"token": known, "timeout": timeout, "retry_for": retry_for, "ca_file": ca_file}
        self.url = _url(url)
        super().__init__(Verbs(_backend(BlockingTransport(address), address, **self.options)))

    def as_async(self) -> AsyncClient:
        """The same server and token, to be awaited."""
        return AsyncClient(self.url, **self.options)

    def _run(self, verb: Coroutine[Any, Any, Done]) -> Done:
        return run_blocking(verb)


def _url(given: str | None) -> str:
    return given or os.environ.get("CODEQ_URL") or DEFAULT_URL


def _server(url: str | None, token: Token | None, ca_file: str | None) -> tuple[Address, Token]:
    known = token or os.environ.get("CODEQ_TOKEN")
    if not known:
        raise InvalidRequest("a token is needed: pass token=..., or set CODEQ_TOKEN")
    return address_of(_url(url), ca_file), known


def _backend(
    transport: Transport, address: Address, *, token: Token, timeout: Seconds, retry_for: Seconds, **_: Any
) -> HttpBackend:
    timeout_s, retry_s = milliseconds(timeout) / 1000, milliseconds(retry_for) / 1000
    if timeout_s <= 0 or retry_s < 0:
        raise InvalidRequest(f"timeout is more than 0 seconds, retry_for 0 or more, not {timeout} and {retry_for}")
    return HttpBackend(HttpClient(transport, address, token, timeout_s=timeout_s, retry_s=retry_s))
