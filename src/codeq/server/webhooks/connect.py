"""Connects to the host of a webhook under the rules: the address that was checked is the address connected to.

A network backend of httpcore, which does HTTP and TLS above it. There is no way around it: whatever httpcore connects
to comes through `connect_tcp`, with the host of the URL, and leaves as an address that passed the check. So a name that
resolves to something else a moment later changes nothing. TLS still verifies the certificate for the name.
"""

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

from codeq.domain.limits import WEBHOOK_ADDRESSES_MAX, WEBHOOK_RESPONSE_BYTES_MAX
from codeq.domain.webhooks import WebhookRules, WebhookUrl
from codeq.server.webhooks.lookups import LookUp

Network = httpcore.AsyncNetworkBackend

READ_BYTES_MAX = 1 << 10
"""Bytes that are parsed at once: a receiver that sends hundreds of short answers holds the event loop for about a
millisecond, and all that one tenant may have under way for some twenty."""


class ResponseTooLong(httpcore.ReadError):
    """The receiver sends more than anybody reads."""


class CheckedBackend(Network):
    """Connects to one URL's host. Made for each request, because it belongs to one tenant and one URL."""

    def __init__(self, url: WebhookUrl, rules: WebhookRules, look_up: LookUp, *, tenant: str, network: Network) -> None:
        self._url = url
        self._rules = rules
        self._look_up = look_up
        self._tenant = tenant
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        url = self._url
        if (host, port) != (url.host, url.port):
            raise httpcore.ConnectError("the request is for another host than its URL")
        addresses = [url.address] if url.address else await self._look_up(host, port, self._tenant)
        for address in addresses:  # all of them: a name with public and private addresses is not to be trusted
            self._rules.check_address(url, address)
        fault: httpcore.ConnectError | httpcore.ConnectTimeout = httpcore.ConnectError("no address")
        for address in addresses[:WEBHOOK_ADDRESSES_MAX]:
            try:
                stream = await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as refused:
                fault = refused
            else:
                return BoundedStream(stream)
        raise fault


class ProxyBackend(Network):
    """Connects to the operator's egress proxy, which then looks up and checks the host itself."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return BoundedStream(await self._network.connect_tcp(host, port, timeout, local_address, socket_options))


class BoundedStream(httpcore.AsyncNetworkStream):
    """A connection from which no more than WEBHOOK_RESPONSE_BYTES_MAX is read, headers included."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left = WEBHOOK_RESPONSE_BYTES_MAX

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as above
        if self._left <= 0:
            raise ResponseTooLong(f"more than {WEBHOOK_RESPONSE_BYTES_MAX} bytes")
        data = await self._stream.read(min(max_bytes, READ_BYTES_MAX, self._left), timeout)
        self._left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore.AsyncNetworkStream:
        return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
