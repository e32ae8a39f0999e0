"""From a request to a handler and back: what every request passes through is kept short."""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest, StoreFailed
from codeq.server.auth.principal import Kind, Principal
from codeq.server.calls import NOBODY, Call, Reply
from codeq.server.lane import Batch, Lane, Shared
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

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.\-]{1,64}")


class App:
    def __init__(
        self,
        parts: Parts,
        routes: Sequence[Route],
        *,
        tasks: "set[asyncio.Task[None]]",
        on_failure: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._tasks = tasks
        self._on_failure = on_failure
        self._access = parts.settings.log.access
        self._lane = Lane(lambda batch: self._start(self._answer_all(batch)))
        self._exact: dict[str, dict[str, Route]] = {}
        self._shaped: dict[int, list[tuple[list[str], dict[str, Route]]]] = {}
        for route in routes:
            self._add(route)

    def begin(self, call: Call) -> None:
        """See to it that the call is answered. What can be refused or put beside its like at once needs no task."""
        call.started_s = perf_counter()
        given = call.headers.get(b"x-request-id")
        call.request_id = given.decode() if given and _REQUEST_ID.fullmatch(given) else request_id()
        try:
            route = call.route = self._find(call)
            if route.shared is not None and self._shares(route, route.shared, call):
                return
        except CodeqError as fault:
            self._finish(call, self._refuse(call, fault))
        except Exception:  # noqa: BLE001 - the top of every request: what is not foreseen is logged and hidden
            self._finish(call, self._hide(call))
        else:
            self._start(self._answer(route, call))

    def _shares(self, route: Route, shared: Shared, call: Call) -> bool:
        """Put the call beside others of its kind, if nothing has to be waited for before."""
        if not call.is_whole or self._parts.tracing.is_on:
            return False
        principal = self._parts.gate.known(route.kind, _token(call))
        if principal is None:
            return False
        call.principal = principal
        _check_scope(route, principal)
        _check_body(route, call)
        item = shared.read(self._parts, call)
        if item is not None:
            self._lane.add(shared, call, item)
        return item is not None

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps no hold of it, and the server waits for these when it stops
        task.add_done_callback(self._tasks.discard)

    async def _answer_all(self, batch: Batch) -> None:
        shared = batch.shared
        answers: Sequence[Any]
        try:
            answers = await shared.verb(self._parts.core, batch.tenant, batch.items)
        except asyncio.CancelledError:
            for call in batch.calls:
                call.connection.abort()
            raise
        except CodeqError as fault:
            answers = [fault] * len(batch.calls)
        except Exception:  # noqa: BLE001 - as in `begin`
            for call in batch.calls:
                self._finish(call, self._hide(call))
            return
        for call, answer in zip(batch.calls, answers, strict=True):
            self._finish(call, self._shown(shared, call, answer))

    def _shown(self, shared: Shared, call: Call, answer: Any) -> Reply:
        """What one call of a batch is answered. Should it fail, the calls behind it are answered all the same."""
        try:
            return self._refuse(call, answer) if isinstance(answer, CodeqError) else shared.answer(call, answer)
        except Exception:  # noqa: BLE001 - as in `begin`
            return self._hide(call)

    async def _answer(self, route: Route, call: Call) -> None:
        try:
            if not self._parts.tracing.is_on:
                reply = await self._handle_safely(route, call)
            else:
                with self._parts.tracing.request(route.method, route.path, call.path, call.headers) as span:
                    reply = await self._handle_safely(route, call)
                    self._parts.tracing.answered(span, reply.status)
        except asyncio.CancelledError:
            if call.connection.is_lost:
                return  # nobody is left to answer
            call.connection.abort()
            raise
        self._finish(call, reply)

    async def _handle_safely(self, route: Route, call: Call) -> Reply:
        try:
            return await self._handle(route, call)
        except CodeqError as fault:
            return self._refuse(call, fault)
        except Exception:  # noqa: BLE001 - as in `begin`
            return self._hide(call)

    async def _handle(self, route: Route, call: Call) -> Reply:
        if route.kind is not Kind.NONE and call.principal is NOBODY:
            call.principal = await self._parts.gate.admit(route.kind, _token(call))
            _check_scope(route, call.principal)
        if route.method in ("POST", "PUT"):
            _check_body(route, call)
            if not call.is_whole:
                await self._read_body(route, call)
        return await route.handler(self._parts, call)

    async def _read_body(self, route: Route, call: Call) -> None:
        try:
            async with asyncio.timeout(self._parts.settings.http.body_timeout_seconds):
                body = await call.connection.body(call, route.body_max)
        except TimeoutError:
            raise TooSlow("the body did not arrive in time") from None
        if body is None:
            raise _too_large(route)

    def _finish(self, call: Call, reply: Reply) -> None:
        seconds = perf_counter() - call.started_s
        call.connection.reply(call, reply)
        self._record(call, reply.status, seconds)

    def _hide(self, call: Call) -> Reply:
        log(logging.ERROR, "internal error", exc_info=True, request_id=call.request_id, path=call.path)
        return call.answer(500, Problem(error="internal error", code="internal", request_id=call.request_id))

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
            reply.closes = True  # the rest of the body will not be read
        elif isinstance(fault, WrongMethod):
            reply.headers = [(b"allow", str(fault).rpartition(": ")[2].encode())]
        if isinstance(fault, StoreFailed):
            self._on_failure()
        return reply

    def _record(self, call: Call, status: int, seconds: float) -> None:
        name = call.route.path if call.route is not None else "unknown"
        self._parts.metrics.answered(name, status, seconds)
        access = self._access
        if access == "all" or (access == "errors" and status >= 500):
            log(
                logging.INFO,
                "request",
                method=call.method,
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

    def _find(self, call: Call) -> Route:
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
        route = methods.get(call.method)
        if route is None:
            raise WrongMethod(f"this path takes: {', '.join(sorted(methods))}")
        return route


def _token(call: Call) -> str:
    given = call.headers.get(b"authorization")
    if given is None:
        raise Unauthenticated("missing Authorization header")
    text = given.decode("latin-1")
    if b"authorization" in call.repeated or text[:7].lower() != "bearer ":
        raise Unauthenticated("invalid Authorization format: one header, `Bearer <token>`")
    return text[7:].strip()


def _check_scope(route: Route, principal: Principal) -> None:
    scope = route.scope
    if scope is None or scope in principal.scopes:
        return
    if route.kind is Kind.WORKER or not (principal.is_admin or principal.is_platform):
        raise Forbidden(f"missing scope: this needs {scope}")


def _check_body(route: Route, call: Call) -> None:
    if b"content-encoding" in call.headers:
        raise WrongMedia("send the body as it is, without a content encoding")
    length = call.headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 12 or int(length) > route.body_max or len(call.body) > route.body_max:
        raise _too_large(route)


def _too_large(route: Route) -> TooLarge:
    return TooLarge(f"the body may have at most {route.body_max} bytes")


def _public(fault: CodeqError) -> str:
    """What an outsider may know of a fault inside: no paths, no library's words."""
    return {
        "busy": "the store is busy; try again in a moment",
        "full": "the store is full; new tasks are refused until space is freed",
        "unavailable": str(fault),
    }.get(fault.code, "the store is not available")
