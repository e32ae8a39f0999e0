"""Sends one signed POST to a tenant's URL under the rules for webhooks. Result callbacks and notifications use it.

    sender = Sender(rules, secrets)
    answer = await sender.send(Webhook(tenant="acme", id="msg-1", url="https://example.com/hook", body=b"{}"))
    answer.is_success, answer.status, answer.retry_after_ms

It is limited in time and in bytes, follows no redirect, knows no cookies, ignores proxies in the environment, and never
shows what a receiver answered: of the response, status and `Retry-After` are used and nothing else.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from email.utils import parsedate_to_datetime
from types import MappingProxyType

import httpcore
import httpx
from msgspec import Struct

import codeq
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import WEBHOOK_RETRY_AFTER_MS_MAX
from codeq.domain.webhooks import WebhookRules, WebhookUrl
from codeq.server.webhooks.connect import CheckedBackend, Network, ProxyBackend, ResponseTooLong
from codeq.server.webhooks.lookups import WAIT_S, LookUpFailed, LookUps, LookUpsBusy
from codeq.server.webhooks.secrets import Secrets
from codeq.server.webhooks.streams import StreamsBackend
from codeq.wire.webhooks import signed_headers

TIMEOUT_S = 15.0
"""For all of one delivery, from the look-up of the host to the end of the response: as in the original codeQ."""
CONNECT_TIMEOUT_S = 5.0
"""For one address."""
REST_TIMEOUT_S = 1.0
"""For the body of a response, which is read only so that the receiver sees an orderly end of the connection."""


class Webhook(Struct, frozen=True, kw_only=True, gc=False):
    tenant: str
    id: str
    """The same in every attempt, so that the receiver can tell repeats."""
    url: str
    body: bytes
    """JSON."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Further headers, such as `traceparent`; their values must be checked."""


class Answer(Struct, frozen=True, gc=False):
    status: int
    retry_after_ms: int | None = None
    """What the receiver asked for, up to WEBHOOK_RETRY_AFTER_MS_MAX."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class SendFailed(Exception):
    """No answer. The text is for the tenant: it says nothing of the server's own network."""

    def __init__(self, reason: str, *, is_refused: bool = False, is_tried: bool = True) -> None:
        super().__init__(reason)
        self.is_refused = is_refused
        """Whether the rules did not allow it, so that nothing was sent."""
        self.is_tried = is_tried
        """Whether it says anything about the receiver: this server may have had no room to try."""


class Sender:
    """Makes a connection for each webhook: no receiver can leave bytes in it for the answer to another's."""

    def __init__(
        self,
        rules: WebhookRules,
        secrets: Secrets,
        *,
        lookups: LookUps | None = None,
        proxy: str = "",
        timeout_s: float = TIMEOUT_S,
        ssl_context: ssl.SSLContext | None = None,
        now_s: Callable[[], float] = time.time,
        network: Network | None = None,
    ) -> None:
        """With a proxy, host names are not looked up here: the proxy must not reach what tenants may not reach."""
        self.rules = rules
        self._secrets = secrets
        self._lookups = lookups or LookUps(wait_s=min(WAIT_S, timeout_s / 3))
        self._proxy = read_proxy(proxy)
        self._timeout_s = timeout_s
        self._ssl_context = ssl_context or httpx.create_ssl_context(trust_env=False)
        self._now_s = now_s
        self._network = network or StreamsBackend()

    async def send(self, webhook: Webhook) -> Answer:
        """Returns the receiver's answer, whatever its status. Raises SendFailed if there is none."""
        try:
            url = self.rules.check(webhook.url)
        except InvalidRequest as refusal:
            raise SendFailed(str(refusal), is_refused=True) from None
        now_s = self._now_s()
        headers = {
            "content-type": "application/json",
            "user-agent": f"codeq/{codeq.__version__}",
            "accept": "*/*",
            "connection": "close",
            **webhook.headers,
            **signed_headers(self._secrets.keys(webhook.tenant), webhook.id, webhook.body, now_s=int(now_s)),
        }
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(url, webhook, headers, now_s=now_s)
        except TimeoutError:
            raise SendFailed(f"no answer within {self._timeout_s:g} s") from None
        except InvalidRequest as refusal:  # of an address that the host resolved to
            raise SendFailed(str(refusal), is_refused=True) from None
        except LookUpsBusy as busy:
            raise SendFailed(str(busy), is_tried=False) from None
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, LookUpFailed) as fault:
            raise SendFailed(_reason(fault)) from fault
        except httpcore.ProxyError as fault:
            raise SendFailed("the egress proxy refused the connection") from fault

    async def _post(self, url: WebhookUrl, webhook: Webhook, headers: Mapping[str, str], *, now_s: float) -> Answer:
        backend = (
            ProxyBackend(self._network)
            if self._proxy
            else CheckedBackend(url, self.rules, self._lookups.look_up, tenant=webhook.tenant, network=self._network)
        )
        target = httpcore.URL(
            scheme=url.scheme.encode(),
            host=url.host.encode(),
            port=None if url.is_default_port else url.port,
            target=url.target.encode(),
        )
        connection: httpcore.AsyncConnectionInterface | httpcore.AsyncConnectionPool
        if self._proxy:
            connection = httpcore.AsyncConnectionPool(
                ssl_context=self._ssl_context,
                proxy=self._proxy,
                max_connections=1,
                max_keepalive_connections=0,
                retries=0,
                network_backend=backend,
            )
        else:  # a pool around it is a tenth of the cost
            connection = httpcore.AsyncHTTPConnection(
                target.origin, ssl_context=self._ssl_context, retries=0, network_backend=backend
            )
        async with aclosing(connection):
            extensions = {"timeout": {"connect": CONNECT_TIMEOUT_S}}
            listed = [(name.encode(), value.encode()) for name, value in headers.items()]
            async with connection.stream(
                "POST", target, headers=listed, content=webhook.body, extensions=extensions
            ) as got:
                answer = Answer(got.status, _retry_after_ms(got, now_s))
                with suppress(TimeoutError, httpcore.NetworkError, httpcore.ProtocolError):
                    async with asyncio.timeout(REST_TIMEOUT_S):
                        async for _ in got.aiter_stream():
                            pass
            return answer


def _retry_after_ms(response: httpcore.Response, now_s: float) -> int | None:
    value = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"").decode("latin-1")
    try:
        wait_s = float(value) if value.isdecimal() else parsedate_to_datetime(value).timestamp() - now_s
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    return round(min(max(wait_s, 0.0) * 1000, WEBHOOK_RETRY_AFTER_MS_MAX))


def _reason(fault: Exception) -> str:
    match fault:
        case LookUpFailed():
            return str(fault)
        case ResponseTooLong():
            return "the response is too long"
        case httpcore.ConnectTimeout():
            return "the host does not answer"
        case httpcore.ConnectError():
            is_tls = isinstance(fault.__cause__ or fault.__context__, ssl.SSLError)
            return "TLS could not be agreed on, or the certificate is not valid" if is_tls else "no connection"
        case httpcore.ProtocolError():
            return "the receiver sent no valid HTTP response"
        case _:
            return "the connection was lost"


def read_proxy(url: str) -> httpcore.Proxy | None:
    """Returns the proxy of a URL, which may have a user name and password; None for an empty one."""
    if not url:
        return None
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        raise InvalidRequest("a proxy is an http or https URL") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise InvalidRequest("a proxy is an http or https URL")
    auth = (parts.username, parts.password) if parts.username else None
    return httpcore.Proxy(str(parts.copy_with(username=None, password=None)), auth=auth)
