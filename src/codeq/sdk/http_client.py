"""Sends requests to one codeQ server as one caller: encoded, authorised, and repeated on transient errors."""

import logging
import random
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from codeq.distribution import __version__
from codeq.domain.errors import CodeqError, InvalidRequest, NotFound, QuotaExceeded, UploadOffset
from codeq.sdk.backend import Token
from codeq.sdk.transport import Address, Response, Transport, Untrusted
from codeq.wire.errors import RateLimited, Unreachable, error_of
from codeq.wire.system import Problem

log = logging.getLogger("codeq.client")

T = TypeVar("T")

RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0
TELL_AFTER_S = 2.0
"""How long a call is repeated in silence."""
RETRIED = frozenset({408, 429, 502, 503, 504})
_JSON, _MSGPACK = "application/json", "application/msgpack"


class HttpClient:
    """Repeats a request for `retry_s` on lost connections and on `RETRIED`, so every request must be safe to repeat."""

    def __init__(self, transport: Transport, address: Address, token: Token, *, timeout_s: float, retry_s: float):
        self._transport = transport
        self._address = address
        self._token = token
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._place = f"{address.host}:{address.port}"
        self._head = ""
        self._authorize()

    async def call(
        self,
        method: str,
        path: str,
        request: Any,
        answer: type[T],
        *,
        query: dict[str, Any] | None = None,
        wait_ms: int = 0,
        **names: str,
    ) -> T:
        """Sends `request` as JSON to the path with its names filled in, and decodes the answer."""
        target = path_of(path, names) + (f"?{urlencode(query)}" if query else "")
        body = encoded(msgspec.json.encode, request) if request is not None else b""
        response = await self.send(method, target, body, wait_ms=wait_ms)
        return decoded(response, lambda body: msgspec.json.decode(body, type=answer))

    async def send(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        packed: bool = False,
        headers: str = "",
        wait_ms: int = 0,
        accept: str = "",
        media: str = "",
        transfer_s: float = 0,
        retry: bool = True,
    ) -> Response:
        """Returns a successful response, or raises the error that the server answered. `wait_ms` is how long the server
        itself may wait, on top of the timeout; `accept` is the media type of the response if it is not the body's,
        `media` that of a body which is neither JSON nor MessagePack. `transfer_s` is how long a large body may be on
        its way, on top of the timeout and of the time for repeating. Without `retry` it is tried once."""
        kind = _MSGPACK if packed else _JSON
        timeout_s = self._timeout_s + transfer_s + wait_ms / 1000
        began_s = monotonic()
        deadline_s = began_s + transfer_s + self._retry_s if retry else began_s
        is_told = False
        pause_s = RETRY_FIRST_S
        has_new_token = False
        while True:
            head = (
                f"{method} {self._address.prefix}{target} HTTP/1.1\r\n{self._head}accept: {accept or kind}\r\n"
                f"content-type: {media or kind}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
            )
            least_s = 0.0
            try:
                response = await self._transport.exchange(head.encode("latin-1") + body, timeout_s)
                if response.status < 300:
                    return response
                fault = _error_in(response)
                if response.status == 401 and callable(self._token) and not has_new_token:
                    has_new_token = True
                    self._authorize()
                    continue
                if response.status not in RETRIED or (isinstance(fault, QuotaExceeded) and not fault.retry_after_s):
                    raise fault
                retry_after = response.headers.get(b"retry-after", b"0")
                least_s = float(retry_after) if retry_after.isdigit() else 0.0
            except Untrusted:
                raise
            except Unreachable as broken:
                fault = broken
            wait_s = least_s + random.uniform(0, pause_s)
            now_s = monotonic()
            if now_s + wait_s > deadline_s:
                raise fault
            is_told = is_told or self._tell(fault, now_s + wait_s - began_s, deadline_s - now_s)
            await self._transport.sleep(wait_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _tell(self, fault: CodeqError, passed_s: float, left_s: float) -> bool:
        """Logs that a call has no answer, once that is worth a line. Returns whether it has."""
        if passed_s < TELL_AFTER_S:
            return False
        log.warning("no answer from %s so far, trying for another %.0f s: %s", self._place, left_s, fault)
        return True

    def _authorize(self) -> None:
        token = self._token() if callable(self._token) else self._token
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise InvalidRequest("a token is one line of ASCII text")
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        self._head = f"host: {host}:{self._address.port}\r\nauthorization: Bearer {token}\r\n"

    async def sleep(self, seconds: float) -> None:
        await self._transport.sleep(seconds)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return await self._transport.run(function, *args)

    async def close(self) -> None:
        await self._transport.close()


def path_of(path: str, names: dict[str, str]) -> str:
    """Fills names into a path of `wire.paths`, each escaped."""
    for name, value in names.items():
        if not isinstance(value, str) or value in ("", ".", "..") or "/" in value:  # would lead to another path
            if name == "id":
                raise NotFound(f"there is no task {value!r:.70}")
            raise InvalidRequest(f"{name} must not be {value!r:.70}")
        path = path.replace(f"{{{name}}}", quote(value, safe="", errors="replace"))
    return path


def encoded(encode: Callable[[Any], bytes], message: Any) -> bytes:
    try:
        return encode(message)
    except (TypeError, ValueError, OverflowError) as fault:
        raise InvalidRequest(f"this cannot be sent: {fault}") from None


def decoded(response: Response, decode: Callable[[bytes], T]) -> T:
    """Decodes the body. One that cannot be decoded did not come from a codeQ server, or came from a newer one."""
    try:
        return decode(response.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise unreadable(response.body, fault) from None


def unreadable(body: bytes, fault: Exception) -> CodeqError:
    return error_of("unreadable", f"the server's answer cannot be read ({fault}): {_excerpt(body)}")


def _error_in(response: Response) -> CodeqError:
    try:
        packed = b"msgpack" in response.headers.get(b"content-type", b"")
        decode = msgspec.msgpack.decode if packed else msgspec.json.decode
        problem = decode(response.body, type=Problem)
    except (msgspec.DecodeError, ValueError, RecursionError):
        text = f"the server answered {response.status}: {_excerpt(response.body)}"
        return error_of(f"http-{response.status}", text)
    is_newer = response.status == 400 and "unknown field" in problem.error
    told = f" (the server is older than codeQ {__version__} of this program: upgrade the server first)"
    fault = error_of(problem.code, problem.error + told if is_newer else problem.error)
    if isinstance(fault, QuotaExceeded):
        fault.limit, fault.retry_after_s = problem.limit or "", problem.retry_after_seconds or 0
    if isinstance(fault, UploadOffset):
        fault.offset = problem.offset or 0
    if isinstance(fault, RateLimited):
        fault.scope, fault.operation = problem.scope or "", problem.operation or ""
        fault.retry_after_s = problem.retry_after_seconds or 1
    return fault


def _excerpt(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace")
