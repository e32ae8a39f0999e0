"""Requests to one codeQ server as one caller: encoded, authorised, and repeated while that may help."""

import random
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest, NotFound
from codeq.sdk.transport import Address, Answer, Transport, Untrusted
from codeq.wire.errors import RateLimited, Unreachable, error_of
from codeq.wire.system import Problem

Token = str | Callable[[], str]
Message = TypeVar("Message")

RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0
RETRIED = frozenset({408, 429, 502, 503, 504})
_TEXT, _PACKED = "application/json", "application/msgpack"

_json = msgspec.json.decode


class HttpClient:
    """Repeats a request on lost connections, 429 and 503 for `retry_s`, so every request must be safe to repeat."""

    def __init__(self, transport: Transport, address: Address, token: Token, *, timeout_s: float, retry_s: float):
        self._transport = transport
        self._address = address
        self._token = token
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._head = ""
        self._authorize()

    async def call(
        self,
        method: str,
        path: str,
        asked: Any,
        answer: type[Message],
        *,
        query: dict[str, Any] | None = None,
        wait_ms: int = 0,
        **names: str,
    ) -> Message:
        """Sends `asked` as JSON to the path with its names filled in, and decodes the answer."""
        target = path_of(path, names) + (f"?{urlencode(query)}" if query else "")
        body = encoded(msgspec.json.encode, asked) if asked is not None else b""
        found = await self.send(method, target, body, wait_ms=wait_ms)
        return decoded(found, lambda body: _json(body, type=answer))

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
    ) -> Answer:
        """Returns a successful answer, or raises the error that the server answered. `wait_ms` is how long the server
        itself may take, on top of the time-out; `accept` is the media type of the answer, where it is not the body's.
        """
        kind = _PACKED if packed else _TEXT
        timeout_s = self._timeout_s + wait_ms / 1000
        deadline_s = monotonic() + self._retry_s
        pause_s = RETRY_FIRST_S
        has_new_token = False
        while True:
            head = (
                f"{method} {self._address.prefix}{target} HTTP/1.1\r\n{self._head}accept: {accept or kind}\r\n"
                f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
            )
            least_s = 0.0
            try:
                answer = await self._transport.exchange(head.encode("latin-1") + body, timeout_s)
                if answer.status < 300:
                    return answer
                fault = _error_in(answer)
                if answer.status == 401 and callable(self._token) and not has_new_token:
                    has_new_token = True
                    self._authorize()
                    continue
                if answer.status not in RETRIED:
                    raise fault
                given = answer.headers.get(b"retry-after", b"0")
                least_s = float(given) if given.isdigit() else 0.0
            except Untrusted:
                raise
            except Unreachable as broken:
                fault = broken
            wait_s = least_s + random.uniform(0, pause_s)
            if monotonic() + wait_s > deadline_s:
                raise fault
            await self._transport.sleep(wait_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _authorize(self) -> None:
        token = self._token() if callable(self._token) else self._token
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise InvalidRequest("a token is one line of ASCII text")
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        self._head = f"host: {host}:{self._address.port}\r\nauthorization: Bearer {token}\r\n"

    async def sleep(self, seconds: float) -> None:
        await self._transport.sleep(seconds)

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


def encoded(write: Callable[[Any], bytes], asked: Any) -> bytes:
    try:
        return write(asked)
    except (TypeError, ValueError, OverflowError) as fault:
        raise InvalidRequest(f"this cannot be sent: {fault}") from None


def decoded(answer: Answer, read: Callable[[bytes], Message]) -> Message:
    """Decodes the body. One that cannot be decoded did not come from a codeQ server, or came from a newer one."""
    try:
        return read(answer.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise unreadable(answer.body, fault) from None


def unreadable(body: bytes, fault: Exception) -> CodeqError:
    said = body[:200].decode("utf-8", "replace")
    return error_of("unreadable", f"the server's answer cannot be read ({fault}): {said}")


def _error_in(answer: Answer) -> CodeqError:
    try:
        packed = b"msgpack" in answer.headers.get(b"content-type", b"")
        decode = msgspec.msgpack.decode if packed else msgspec.json.decode
        problem = decode(answer.body, type=Problem)
    except (msgspec.DecodeError, ValueError, RecursionError):
        said = answer.body[:200].decode("utf-8", "replace")
        return error_of(f"http-{answer.status}", f"the server answered {answer.status}: {said}")
    fault = error_of(problem.code, problem.error)
    if isinstance(fault, RateLimited):
        fault.scope, fault.operation = problem.scope or "", problem.operation or ""
        fault.retry_after_s = problem.retry_after_seconds or 1
    return fault
