"""From a request to its handler and back: route, token, scope, body, handler, response.

begin ─▶ route ─▶ batched? ─▶ MicroBatcher ─▶ _run_batch ─▶ handler.respond ─▶ _send
           │         │no
           │         └──────▶ _run ─▶ authenticate, read the body ─▶ handler ─▶ _send
           └ refused ─────────────────────────────────────────────────────────▶ _send
"""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any

from codeq.domain.errors import CodeqError, StoreFailed
from codeq.server.auth.principal import Principal, TokenKind
from codeq.server.logs import log
from codeq.server.microbatch import BatchedHandler, MicroBatcher, RequestBatch
from codeq.server.problems import internal_error, refusal
from codeq.server.request import NOBODY, HttpRequest, HttpResponse
from codeq.server.router import Router
from codeq.server.routes import Route
from codeq.server.state import AppState, request_id
from codeq.wire.errors import Forbidden, TooLarge, TooSlow, Unauthenticated, WrongMedia

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
        self._router = Router(routes)
        self._tasks = tasks
        self._on_failure = on_failure
        self._access = state.settings.log.access
        self._batcher = MicroBatcher(lambda batch: self._start(self._run_batch(batch)))

    def begin(self, request: HttpRequest) -> None:
        """Starts to process the request. Refusals and requests that join a batch need no asyncio task of their own."""
        request.started_s = perf_counter()
        header = request.headers.get(b"x-request-id")
        request.id = header.decode() if header and _REQUEST_ID.fullmatch(header) else request_id()
        try:
            route = request.route = self._router.find(request)
            if self._try_add_to_batch(route, request):
                return
        except CodeqError as fault:
            self._send(request, self._refuse(request, fault))
        except Exception:  # noqa: BLE001 - the top of every request: an unexpected error is logged and hidden
            self._send(request, internal_error(request))
        else:
            self._start(self._run(route, request))

    def _try_add_to_batch(self, route: Route, request: HttpRequest) -> bool:
        """Adds the request to this iteration's batch, unless it must wait first. Returns whether it was added."""
        handler = route.handler
        if not isinstance(handler, BatchedHandler) or not request.is_complete or self._state.tracing.is_on:
            return False
        principal = self._state.authenticator.cached(route.kind, _token(request))
        if principal is None:
            return False
        request.principal = principal
        _check_scope(route, principal)
        _check_body(route, request)
        if handler.needs_authorizing(request):
            return False
        item = handler.to_item(self._state, request, request.parse(handler.parser))
        self._batcher.add(handler, request, item)
        return True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop holds only weak references; the server waits for these when it stops
        task.add_done_callback(self._tasks.discard)

    async def _run_batch(self, batch: RequestBatch) -> None:
        answers: Sequence[Any]
        try:
            answers = await batch.handler.execute(self._state.core, batch.tenant, batch.items)
        except asyncio.CancelledError:
            for request in batch.requests:
                request.connection.abort()
            raise
        except CodeqError as fault:
            answers = [fault] * len(batch.requests)
        except Exception:  # noqa: BLE001 - as in `begin`
            for request in batch.requests:
                self._send(request, internal_error(request))
            return
        for request, answer in zip(batch.requests, answers, strict=True):
            self._send(request, self._respond(batch.handler, request, answer))

    def _respond(self, handler: BatchedHandler, request: HttpRequest, answer: Any) -> HttpResponse:
        """Returns the response to one request of a batch. If it cannot be built, the others still get theirs."""
        try:
            if isinstance(answer, CodeqError):
                return self._refuse(request, answer)
            return handler.respond(request, answer)
        except Exception:  # noqa: BLE001 - as in `begin`
            return internal_error(request)

    async def _run(self, route: Route, request: HttpRequest) -> None:
        tracing = self._state.tracing
        try:
            if not tracing.is_on:
                response = await self._handle_safely(route, request)
            else:
                with tracing.request(route.method, route.path, request.path, request.headers) as span:
                    response = await self._handle_safely(route, request)
                    tracing.answered(span, response.status)
        except asyncio.CancelledError:
            if request.connection.is_lost:
                return  # the client has disconnected
            request.connection.abort()
            raise
        self._send(request, response)

    async def _handle_safely(self, route: Route, request: HttpRequest) -> HttpResponse:
        try:
            return await self._handle(route, request)
        except CodeqError as fault:
            return self._refuse(request, fault)
        except Exception:  # noqa: BLE001 - as in `begin`
            return internal_error(request)

    async def _handle(self, route: Route, request: HttpRequest) -> HttpResponse:
        if route.kind is not TokenKind.NONE and request.principal is NOBODY:
            request.principal = await self._state.authenticator.authenticate(route.kind, _token(request))
            _check_scope(route, request.principal)
        if route.method in ("POST", "PUT"):
            _check_body(route, request)
            if not request.is_complete:
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

    def _refuse(self, request: HttpRequest, fault: CodeqError) -> HttpResponse:
        if isinstance(fault, StoreFailed):
            self._on_failure()
        return refusal(request, fault)

    def _send(self, request: HttpRequest, response: HttpResponse) -> None:
        seconds = perf_counter() - request.started_s
        request.connection.send(request, response)
        route = request.route.path if request.route is not None else "unknown"
        self._state.metrics.answered(route, response.status, seconds)
        access = self._access
        if access == "all" or (access == "errors" and response.status >= 500):
            log(
                logging.INFO,
                "request",
                method=request.method,
                route=route,
                status=response.status,
                ms=round(seconds * 1000, 2),
                request_id=request.id,
                tenant=request.tenant or None,
                task_id=request.params.get("id", "")[:36] or None,
            )


def _token(request: HttpRequest) -> str:
    header = request.headers.get(b"authorization")
    if header is None:
        raise Unauthenticated("missing Authorization header")
    text = header.decode("latin-1")
    if b"authorization" in request.repeated or text[:7].lower() != "bearer ":
        raise Unauthenticated("invalid Authorization format: one header, `Bearer <token>`")
    return text[7:].strip()


def _check_scope(route: Route, principal: Principal) -> None:
    scope = route.scope
    if scope is None or scope in principal.scopes:
        return
    if route.kind is TokenKind.WORKER or not (principal.is_admin or principal.is_platform):
        raise Forbidden(f"missing scope: this needs {scope}")


def _check_body(route: Route, request: HttpRequest) -> None:
    if b"content-encoding" in request.headers:
        raise WrongMedia("send the body as it is, without a content encoding")
    length = request.headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 12 or int(length) > route.body_max or len(request.body) > route.body_max:
        raise _too_large(route)


def _too_large(route: Route) -> TooLarge:
    return TooLarge(f"the body may have at most {route.body_max} bytes")
