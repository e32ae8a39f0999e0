"""From an HTTP request to a handler and back. Raw ASGI: what every request passes through is kept short."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest, StoreFailed
from codeq.server.auth.principal import Kind
from codeq.server.calls import Call, Reply
from codeq.server.logs import log
from codeq.server.parts import Parts, request_id
from codeq.server.routes import Route
from codeq.wire.errors import (
    Forbidden,
    NoRoute,
    RateLimited,
    TooLarge,
    TooSlow,
    Unauthenticated,
    WrongMedia,
    WrongMethod,
    status_of,
)
from codeq.wire.queues import Problem

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.\-]{1,64}")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")


class App:
    def __init__(self, parts: Parts, routes: Sequence[Route], on_failure: Callable[[], None]) -> None:
        self._parts = parts
        self._on_failure = on_failure
        self._exact: dict[str, dict[str, Route]] = {}
        self._shaped: dict[int, list[tuple[list[str], dict[str, Route]]]] = {}
        for route in routes:
            self._add(route)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started_s = perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        call = Call(scope["path"], {}, headers, scope["query_string"])
        given = headers.get(b"x-request-id")
        call.request_id = given.decode() if given and _REQUEST_ID.fullmatch(given) else request_id()
        call.connection = scope.get("codeq")
        try:
            reply = await self._answer(scope, call, receive)
        except asyncio.CancelledError:
            if call.connection is not None and call.connection.is_lost:
                return  # nobody is left to answer
            raise
        await self._send(scope, send, call, reply)
        self._record(call, scope["method"], reply.status, perf_counter() - started_s)

    async def _answer(self, scope: dict[str, Any], call: Call, receive: Receive) -> Reply:
        try:
            route = call.route = self._find(scope["method"], call)
        except CodeqError as fault:
            return self._refuse(call, fault)
        if not self._parts.tracing.is_on:
            return await self._handle_safely(route, call, scope, receive)
        with self._parts.tracing.request(route.method, route.path, call.path, call.headers) as span:
            reply = await self._handle_safely(route, call, scope, receive)
            self._parts.tracing.answered(span, reply.status)
            return reply

    async def _handle_safely(self, route: Route, call: Call, scope: dict[str, Any], receive: Receive) -> Reply:
        try:
            return await self._handle(route, call, scope, receive)
        except CodeqError as fault:
            return self._refuse(call, fault)
        except Exception:  # noqa: BLE001 - the top of every request: what is not foreseen is logged and hidden
            log(logging.ERROR, "internal error", exc_info=True, request_id=call.request_id, path=call.path)
            problem = Problem(error="internal error", code="internal", request_id=call.request_id)
            return call.answer(500, problem)

    async def _handle(self, route: Route, call: Call, scope: dict[str, Any], receive: Receive) -> Reply:
        if route.kind is not Kind.NONE:
            await self._admit(route, call, scope["headers"])
        if route.method in ("POST", "PUT"):
            call.body = await self._read_body(route, call, scope, receive)
        return await route.handler(self._parts, call)

    async def _admit(self, route: Route, call: Call, headers: list[tuple[bytes, bytes]]) -> None:
        given = call.headers.get(b"authorization")
        if given is None:
            raise Unauthenticated("missing Authorization header")
        text = given.decode("latin-1")
        is_repeated = len(headers) > len(call.headers) and [name for name, _ in headers].count(b"authorization") > 1
        if is_repeated or text[:7].lower() != "bearer ":
            raise Unauthenticated("invalid Authorization format: one header, `Bearer <token>`")
        principal = call.principal = await self._parts.gate.admit(route.kind, text[7:].strip())
        scope = route.scope
        if scope is None or scope in principal.scopes:
            return
        if route.kind is Kind.WORKER or not (principal.is_admin or principal.is_platform):
            raise Forbidden(f"missing scope: this needs {scope}")

    async def _read_body(self, route: Route, call: Call, scope: dict[str, Any], receive: Receive) -> bytes:
        if b"content-encoding" in call.headers:
            raise WrongMedia("send the body as it is, without a content encoding")
        length = call.headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 12 or int(length) > route.body_max:
            raise TooLarge(f"the body may have at most {route.body_max} bytes")
        arrived: bytes | None = call.connection.body_of(scope) if call.connection is not None else None
        if arrived is not None:
            if len(arrived) > route.body_max:
                raise TooLarge(f"the body may have at most {route.body_max} bytes")
            return arrived
        body: bytes = b""
        try:
            async with asyncio.timeout(self._parts.settings.http.body_timeout_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise asyncio.CancelledError
                    body = body + message["body"] if body else message["body"]
                    if len(body) > route.body_max:
                        raise TooLarge(f"the body may have at most {route.body_max} bytes")
                    if not message["more_body"]:
                        return body
        except TimeoutError:
            raise TooSlow("the body did not arrive in time") from None

    def _refuse(self, call: Call, fault: CodeqError) -> Reply:
        status = status_of(fault)
        problem = Problem(error=str(fault), code=fault.code)
        if isinstance(fault, RateLimited):
            problem = msgspec.structs.replace(
                problem, scope=fault.scope, operation=fault.operation, retry_after_seconds=fault.retry_after_s
            )
        elif isinstance(fault, InvalidRequest) and " - at `$" in str(fault):
            problem = msgspec.structs.replace(problem, field=str(fault).rpartition(" - at `$")[2].strip("`."))
        elif status >= 500:
            problem = msgspec.structs.replace(problem, error=_public(fault), request_id=call.request_id)
            log(logging.ERROR, str(fault), request_id=call.request_id, code=fault.code)
        reply = call.answer(status, problem)
        if isinstance(fault, RateLimited):
            reply.headers = [(b"retry-after", str(fault.retry_after_s).encode())]
        elif status == 503:
            reply.headers = [(b"retry-after", b"1")]
        elif status == 401:
            reply.headers = [(b"www-authenticate", b"Bearer")]
        elif status in (408, 413):
            reply.headers = [(b"connection", b"close")]  # the rest of the body will not be read
        elif isinstance(fault, WrongMethod):
            reply.headers = [(b"allow", str(fault).rpartition(": ")[2].encode())]
        if isinstance(fault, StoreFailed):
            self._on_failure()
        return reply

    async def _send(self, scope: dict[str, Any], send: Send, call: Call, reply: Reply) -> None:
        headers = [
            (b"content-type", reply.content_type.encode()),
            (b"content-length", b"%d" % len(reply.body)),
            (b"x-request-id", call.request_id.encode()),
            _NO_SNIFF,
            *reply.headers,
        ]
        if reply.status == 204:
            headers = headers[2:]
        if call.connection is not None and scope["method"] != "HEAD":
            lines = b"".join([b"%s: %s\r\n" % pair for pair in headers])
            if call.connection.respond(scope, reply.status, lines, reply.body):
                return
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    def _record(self, call: Call, method: str, status: int, seconds: float) -> None:
        name = call.route.path if call.route is not None else "unknown"
        self._parts.metrics.answered(name, status, seconds)
        access = self._parts.settings.log.access
        if access == "all" or (access == "errors" and status >= 500):
            log(
                logging.INFO,
                "request",
                method=method,
                route=name,
                status=status,
                ms=round(seconds * 1000, 2),
                request_id=call.request_id,
                tenant=call.principal.tenant or None,
                task_id=call.params.get("id", "")[:36] or None,
            )

    def _add(self, route: Route) -> None:
        if "{" not in route.path:
            self._exact.setdefault(route.path, {})[route.method] = route
            return
        parts = route.path.split("/")
        shapes = self._shaped.setdefault(len(parts), [])
        for known, methods in shapes:
            if known == parts:
                methods[route.method] = route
                return
        shapes.append((parts, {route.method: route}))

    def _find(self, method: str, call: Call) -> Route:
        methods = self._exact.get(call.path)
        if methods is None:
            given = call.path.split("/")
            for parts, shaped in self._shaped.get(len(given), ()):
                if all(part == text or part[:1] == "{" for part, text in zip(parts, given, strict=True)):
                    methods = shaped
                    call.params = {part[1:-1]: text for part, text in zip(parts, given, strict=True) if part[:1] == "{"}
                    break
        if methods is None:
            raise NoRoute("there is nothing at this path; see /docs")
        route = methods.get(method)
        if route is None:
            raise WrongMethod(f"this path takes: {', '.join(sorted(methods))}")
        return route


def _public(fault: CodeqError) -> str:
    """What an outsider may know of a fault inside: no paths, no library's words."""
    return {
        "busy": "the store is busy; try again in a moment",
        "full": "the store is full; new tasks are refused until space is freed",
        "unavailable": str(fault),
    }.get(fault.code, "the store is not available")
