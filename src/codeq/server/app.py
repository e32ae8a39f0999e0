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
from codeq.server.logs import log
from codeq.server.microbatch import Batch, BatchedVerb, MicroBatcher
from codeq.server.request import NOBODY, HttpRequest, HttpResponse
from codeq.server.routes import Route
from codeq.server.state import AppState, request_id
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
from codeq.wire.system import Problem

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.\-]{1,64}")


class App:
    def __init__(
        self,
        state: AppState,
        routes: Sequence[Route],
        *,
        tasks: "set[asyncio.Task[None]]",
        on_failure: Callable[[], None],
    ) -> None:
        self._state = state
        self._tasks = tasks
        self._on_failure = on_failure
        self._access = state.settings.log.access
        self._lane = MicroBatcher(lambda batch: self._start(self._answer_all(batch)))
        self._exact: dict[str, dict[str, Route]] = {}
        self._shaped: dict[int, list[tuple[list[str], dict[str, Route]]]] = {}
        for route in routes:
            self._add(route)

    def begin(self, request: HttpRequest) -> None:
        """See to it that the call is answered. What can be refused or put beside its like at once needs no task."""
        request.started_s = perf_counter()
        given = request.headers.get(b"x-request-id")
        request.request_id = given.decode() if given and _REQUEST_ID.fullmatch(given) else request_id()
        try:
            route = request.route = self._find(request)
            if route.shared is not None and self._shares(route, route.shared, request):
                return
        except CodeqError as fault:
            self._finish(request, self._refuse(request, fault))
        except Exception:  # noqa: BLE001 - the top of every request: what is not foreseen is logged and hidden
            self._finish(request, self._hide(request))
        else:
            self._start(self._answer(route, request))

    def _shares(self, route: Route, shared: BatchedVerb, request: HttpRequest) -> bool:
        """Put the call beside others of its kind, if nothing has to be waited for before."""
        if not request.is_whole or self._state.tracing.is_on:
            return False
        principal = self._state.authenticator.cached(route.kind, _token(request))
        if principal is None:
            return False
        request.principal = principal
        _check_scope(route, principal)
        _check_body(route, request)
        item = shared.read(self._state, request)
        if item is not None:
            self._lane.add(shared, request, item)
        return item is not None

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps no hold of it, and the server waits for these when it stops
        task.add_done_callback(self._tasks.discard)

    async def _answer_all(self, batch: Batch) -> None:
        shared = batch.shared
        answers: Sequence[Any]
        try:
            answers = await shared.verb(self._state.core, batch.tenant, batch.items)
        except asyncio.CancelledError:
            for request in batch.requests:
                request.connection.abort()
            raise
        except CodeqError as fault:
            answers = [fault] * len(batch.requests)
        except Exception:  # noqa: BLE001 - as in `begin`
            for request in batch.requests:
                self._finish(request, self._hide(request))
            return
        for request, answer in zip(batch.requests, answers, strict=True):
            self._finish(request, self._shown(shared, request, answer))

    def _shown(self, shared: BatchedVerb, request: HttpRequest, answer: Any) -> HttpResponse:
        """What one call of a batch is answered. Should it fail, the calls behind it are answered all the same."""
        try:
            return self._refuse(request, answer) if isinstance(answer, CodeqError) else shared.answer(request, answer)
        except Exception:  # noqa: BLE001 - as in `begin`
            return self._hide(request)

    async def _answer(self, route: Route, request: HttpRequest) -> None:
        try:
            if not self._state.tracing.is_on:
                response = await self._handle_safely(route, request)
            else:
                with self._state.tracing.request(route.method, route.path, request.path, request.headers) as span:
                    response = await self._handle_safely(route, request)
                    self._state.tracing.answered(span, response.status)
        except asyncio.CancelledError:
            if request.connection.is_lost:
                return  # nobody is left to answer
            request.connection.abort()
            raise
        self._finish(request, response)

    async def _handle_safely(self, route: Route, request: HttpRequest) -> HttpResponse:
        try:
            return await self._handle(route, request)
        except CodeqError as fault:
            return self._refuse(request, fault)
        except Exception:  # noqa: BLE001 - as in `begin`
            return self._hide(request)

    async def _handle(self, route: Route, request: HttpRequest) -> HttpResponse:
        if route.kind is not Kind.NONE and request.principal is NOBODY:
            request.principal = await self._state.authenticator.authenticate(route.kind, _token(request))
            _check_scope(route, request.principal)
        if route.method in ("POST", "PUT"):
            _check_body(route, request)
            if not request.is_whole:
                await self._read_body(route, request)
        return await route.handler(self._state, request)

    async def _read_body(self, route: Route, request: HttpRequest) -> None:
        try:
            async with asyncio.timeout(self._state.settings.http.body_timeout_seconds):
                body = await request.connection.body(request, route.body_max)
        except TimeoutError:
            raise TooSlow("the body did not arrive in time") from None
        if body is None:
            raise _too_large(route)

    def _finish(self, request: HttpRequest, response: HttpResponse) -> None:
        seconds = perf_counter() - request.started_s
        request.connection.response(request, response)
        self._record(request, response.status, seconds)

    def _hide(self, request: HttpRequest) -> HttpResponse:
        log(logging.ERROR, "internal error", exc_info=True, request_id=request.request_id, path=request.path)
        return request.respond(500, Problem(error="internal error", code="internal", request_id=request.request_id))

    def _refuse(self, request: HttpRequest, fault: CodeqError) -> HttpResponse:
        status = status_of(fault)
        problem = Problem(error=str(fault), code=fault.code)
        if isinstance(fault, RateLimited):
            problem = msgspec.structs.replace(
                problem, scope=fault.scope, operation=fault.operation, retry_after_seconds=fault.retry_after_s
            )
        elif isinstance(fault, InvalidRequest) and " - at `$" in str(fault):
            problem = msgspec.structs.replace(problem, field=str(fault).rpartition(" - at `$")[2].strip("`."))
        elif status >= 500:
            problem = msgspec.structs.replace(problem, error=_public(fault), request_id=request.request_id)
            log(logging.ERROR, str(fault), request_id=request.request_id, code=fault.code)
        response = request.respond(status, problem)
        if isinstance(fault, RateLimited):
            response.headers = [(b"retry-after", str(fault.retry_after_s).encode())]
        elif status == 503:
            response.headers = [(b"retry-after", b"1")]
        elif status == 401:
            response.headers = [(b"www-authenticate", b"Bearer")]
        elif status in (408, 413):
            response.closes = True  # the rest of the body will not be read
        elif isinstance(fault, WrongMethod):
            response.headers = [(b"allow", str(fault).rpartition(": ")[2].encode())]
        if isinstance(fault, StoreFailed):
            self._on_failure()
        return response

    def _record(self, request: HttpRequest, status: int, seconds: float) -> None:
        name = request.route.path if request.route is not None else "unknown"
        self._state.metrics.answered(name, status, seconds)
        access = self._access
        if access == "all" or (access == "errors" and status >= 500):
            log(
                logging.INFO,
                "request",
                method=request.method,
                route=name,
                status=status,
                ms=round(seconds * 1000, 2),
                request_id=request.request_id,
                tenant=request.principal.tenant or None,
                task_id=request.params.get("id", "")[:36] or None,
            )

    def _add(self, route: Route) -> None:
        if "{" not in route.path:
            self._exact.setdefault(route.path, {})[route.method] = route
            return
        state = route.path.split("/")
        shapes = self._shaped.setdefault(len(state), [])
        for known, methods in shapes:
            if known == state:
                methods[route.method] = route
                return
        shapes.append((state, {route.method: route}))

    def _find(self, request: HttpRequest) -> Route:
        methods = self._exact.get(request.path)
        if methods is None:
            given = request.path.split("/")
            for state, shaped in self._shaped.get(len(given), ()):
                if all(part == text or part[:1] == "{" for part, text in zip(state, given, strict=True)):
                    methods = shaped
                    request.params = {
                        part[1:-1]: text for part, text in zip(state, given, strict=True) if part[:1] == "{"
                    }
                    break
        if methods is None:
            raise NoRoute("there is nothing at this path; see /docs")
        route = methods.get(request.method)
        if route is None:
            raise WrongMethod(f"this path takes: {', '.join(sorted(methods))}")
        return route


def _token(request: HttpRequest) -> str:
    given = request.headers.get(b"authorization")
    if given is None:
        raise Unauthenticated("missing Authorization header")
    text = given.decode("latin-1")
    if b"authorization" in request.repeated or text[:7].lower() != "bearer ":
        raise Unauthenticated("invalid Authorization format: one header, `Bearer <token>`")
    return text[7:].strip()


def _check_scope(route: Route, principal: Principal) -> None:
    scope = route.scope
    if scope is None or scope in principal.scopes:
        return
    if route.kind is Kind.WORKER or not (principal.is_admin or principal.is_platform):
        raise Forbidden(f"missing scope: this needs {scope}")


def _check_body(route: Route, request: HttpRequest) -> None:
    if b"content-encoding" in request.headers:
        raise WrongMedia("send the body as it is, without a content encoding")
    length = request.headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 12 or int(length) > route.body_max or len(request.body) > route.body_max:
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
