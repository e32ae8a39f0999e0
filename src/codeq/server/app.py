"""From a request to its handler and back: route, token, scope, body, handler, response.

begin ─▶ route ─▶ batched? ─▶ MicroBatcher ─▶ _run_batch ─▶ handler.respond ─▶ _send
           │         │no
           │         └──────▶ _run ─▶ authenticate, read the body ─▶ handler ─▶ _send
           └ refused ─────────────────────────────────────────────────────────▶ _send
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any

from codeq.domain.errors import CodeqError, QuotaExceeded, StoreFailed
from codeq.server.answer_budget import AnswerBudget
from codeq.server.auth.callers import caller_address, read_networks
from codeq.server.auth.principal import Principal, TokenKind
from codeq.server.body_budget import STEP_BYTES, BodyBudget
from codeq.server.connection import Connection
from codeq.server.logs import log
from codeq.server.microbatch import BatchedHandler, MicroBatcher, RequestBatch
from codeq.server.problems import internal_error, refusal
from codeq.server.request import LARGE_BYTES, NOBODY, SHORT_BYTES, HttpRequest, HttpResponse
from codeq.server.router import Router
from codeq.server.routes import Route
from codeq.server.state import AppState, request_id
from codeq.server.streams import read_body, send_pieces
from codeq.server.tenant_slots import REFUSAL_PAUSE_S
from codeq.wire.errors import Forbidden, TooLarge, TooSlow, Unauthenticated, Unavailable, WrongMedia

REMEMBERED_BYTES_MAX = 2048
"""Of a token that a connection remembers: idle connections are many, and their memory is bounded by this."""
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
        http = state.settings.http
        self._bodies = BodyBudget(http.bodies_bytes_max, http.tenant_bodies_bytes_max)
        self._answers = AnswerBudget(http.answers_bytes_max, http.tenant_answers_bytes_max)
        self._proxies = read_networks(state.settings.http.trusted_proxies)
        self._batcher = MicroBatcher(lambda batch: self._start(self._run_batch(batch)))

    def begin(self, request: HttpRequest) -> None:
        """Starts to process the request. Refusals and requests that join a batch need no asyncio task of their own."""
        request.started_s = perf_counter()
        header = request.headers.get(b"x-request-id")
        request.id = header.decode() if header and _REQUEST_ID.fullmatch(header) else request_id()
        try:
            route = request.route = self._router.find(request)
            if route.instant is not None and not self._state.tracing.is_on:
                self._send(request, route.instant(self._state, request))
                return
            if self._try_add_to_batch(route, request):
                return
        except QuotaExceeded as fault:
            self._send_after_pause(request, self._refuse(request, fault))
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
        limiter = self._state.limiter
        if principal is None or (limiter.is_shared and limiter.is_stale(route.charge, principal)):
            return False
        self._admit(route, request, principal)
        _check_body(route, request)
        if len(request.body) > SHORT_BYTES or handler.needs_authorizing(request):
            return False
        item = handler.to_item(self._state, request, request.parse(handler.parser))
        if handler.runs_alone(item):
            return False
        self._batcher.add(handler, request, item)
        return True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it in a task, which removes itself at its end: a callback would cost as much as the task."""
        # The loop holds only weak references; the server waits for these when it stops.
        self._tasks.add(asyncio.get_running_loop().create_task(work))

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
        finally:
            self._tasks.discard(asyncio.current_task())
        for request, answer in zip(batch.requests, answers, strict=True):
            response = self._respond(batch.handler, request, answer)
            if isinstance(answer, QuotaExceeded):
                self._send_after_pause(request, response)
            else:
                self._send(request, response)

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
                with tracing.request(request.method, route.path, request.path, request.headers) as span:
                    response = await self._handle_safely(route, request)
                    tracing.answered(span, response.status)
            if request.reserved_bytes:
                self._bodies.release(request)
            if response.pieces is None:
                self._send(request, response)
            else:
                await self._send_pieces(request, response)
        except asyncio.CancelledError:
            if request.connection.is_lost:
                return  # the client has disconnected
            request.connection.abort()
            raise
        finally:
            if request.reserved_bytes:
                self._bodies.release(request)
            self._tasks.discard(asyncio.current_task())

    async def _handle_safely(self, route: Route, request: HttpRequest) -> HttpResponse:
        try:
            return await self._handle(route, request)
        except QuotaExceeded as fault:
            await asyncio.sleep(REFUSAL_PAUSE_S)
            return self._refuse(request, fault)
        except CodeqError as fault:
            return self._refuse(request, fault)
        except Exception:  # noqa: BLE001 - as in `begin`
            return internal_error(request)

    async def _handle(self, route: Route, request: HttpRequest) -> HttpResponse:
        if route.kind is not TokenKind.NONE and request.principal is NOBODY:
            token = _token(request)
            principal = self._state.authenticator.cached(route.kind, token)
            if principal is None:
                principal = await self._authenticate(route, request, token)
            if self._state.limiter.is_shared:
                await self._state.limiter.refresh(route.charge, principal)
            self._admit(route, request, principal)
        if route.method in ("POST", "PUT"):
            _check_body(route, request)
            if not request.is_complete and not route.streams:
                await self._read_body(route, request)
        return await route.handler(self._state, request)

    async def _authenticate(self, route: Route, request: HttpRequest, token: str) -> Principal:
        forwarded = request.headers.get(b"x-forwarded-for", b"").decode("latin-1")
        caller = caller_address(request.connection.peer, forwarded, self._proxies)
        return await self._state.authenticator.authenticate(route.kind, token, caller=caller)

    def _admit(self, route: Route, request: HttpRequest, principal: Principal) -> None:
        """Lets the principal make this request, or refuses it for its scope, its connections or its rate."""
        request.principal = principal
        if route.scope is not None and route.scope not in principal.scopes:
            _check_scope(route, principal)
        if not route.is_bulk:
            self._state.core.turns.note_short_call(principal.tenant, request.started_s)
        if request.connection.tenant != principal.tenant:
            self._count_connection(request.connection, principal.tenant)
        limiter = self._state.limiter
        if limiter.is_on:
            limiter.spend(route.charge, principal)

    def _count_connection(self, connection: Connection, tenant: str) -> None:
        if connection.is_lost:
            return
        self._state.connections.take(tenant)
        self.connection_lost(connection)
        connection.tenant = tenant

    def connection_lost(self, connection: Connection) -> None:
        """Stops counting the connection, and what it has not read, as its tenant's."""
        self._answers.forget(connection)
        if connection.tenant:
            self._state.connections.free(connection.tenant)
            connection.tenant = ""

    async def _read_body(self, route: Route, request: HttpRequest) -> None:
        size = min(int(request.headers.get(b"content-length", STEP_BYTES)), route.body_max)
        try:
            async with asyncio.timeout(self._state.settings.http.body_timeout_seconds):
                while True:
                    self._bodies.reserve(request, size)
                    if await read_body(request.connection, request, size) is not None:
                        return
                    if size == route.body_max:
                        raise _too_large(route)
                    size = min(size + STEP_BYTES, route.body_max)
        except TimeoutError:
            raise TooSlow("the body did not arrive in time") from None

    def _refuse(self, request: HttpRequest, fault: CodeqError) -> HttpResponse:
        if isinstance(fault, StoreFailed):
            self._on_failure()
        return refusal(request, fault)

    def _send_after_pause(self, request: HttpRequest, response: HttpResponse) -> None:
        """Sends the refusal of what a limit of the tenant does not allow."""
        asyncio.get_running_loop().call_later(REFUSAL_PAUSE_S, self._send, request, response)

    async def _send_pieces(self, request: HttpRequest, response: HttpResponse) -> None:
        """Sends a long response. After its head, a failure is logged, and the client sees an early end."""
        try:
            await send_pieces(request, response, self._state.settings.http.idle_timeout_seconds)
        except CodeqError as fault:
            log(logging.WARNING, "a response was cut off", request_id=request.id, reason=str(fault))
        self._answered(request, response)

    def _send(self, request: HttpRequest, response: HttpResponse) -> None:
        if len(response.body) > LARGE_BYTES:
            response = self._unless_unread(request, response)
        request.connection.send(request, response)
        self._answered(request, response)

    def _unless_unread(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Returns the response, or a refusal if clients leave too many bytes unread. The tasks of a claim return."""
        connection = request.connection
        if connection.is_lost:  # nothing is written any more, and nobody would stop counting it
            return response
        try:
            self._answers.add(request.tenant, connection, len(response.body))
        except Unavailable as fault:
            if request.returns_tasks is not None:
                self._start(self._return_tasks(request.returns_tasks))
                earlier = [each for each in connection.on_undelivered if each is not request.returns_tasks]
                connection.on_undelivered = earlier
            return self._refuse(request, fault)
        return response

    async def _return_tasks(self, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        finally:
            self._tasks.discard(asyncio.current_task())

    def _answered(self, request: HttpRequest, response: HttpResponse) -> None:
        seconds = perf_counter() - request.started_s
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
    """Returns the bearer token. A connection remembers its last one: most clients always send the same."""
    header, connection = request.headers.get(b"authorization"), request.connection
    if header is None:
        raise Unauthenticated("missing Authorization header")
    if header == connection.authorization and not request.repeated:
        return connection.token  # type: ignore[no-any-return]
    text = header.decode("latin-1")
    if b"authorization" in request.repeated or text[:7].lower() != "bearer ":
        raise Unauthenticated("invalid Authorization format: one header, `Bearer <token>`")
    token = text[7:].strip()
    if len(header) <= REMEMBERED_BYTES_MAX:
        connection.authorization, connection.token = header, token
    return token


def _check_scope(route: Route, principal: Principal) -> None:
    """Refuses a token that does not name the scope, unless it is an admin's that does not work."""
    if route.kind is TokenKind.WORKER or not (principal.is_admin or principal.is_platform):
        raise Forbidden(f"missing scope: this needs {route.scope}")


def _check_body(route: Route, request: HttpRequest) -> None:
    if b"content-encoding" in request.headers:
        raise WrongMedia("send the body as it is, without a content encoding")
    if request.is_complete:
        if len(request.body) > route.body_max:
            raise _too_large(route)
        return
    length = request.headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 12 or int(length) > route.body_max:
        raise _too_large(route)


def _too_large(route: Route) -> TooLarge:
    return TooLarge(f"the body may have at most {route.body_max} bytes")
