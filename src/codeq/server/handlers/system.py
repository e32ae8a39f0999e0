"""Routes for machines: health, readiness, metrics, the API description, the keys of a development server."""

from hmac import compare_digest

from codeq.server.html import html_response
from codeq.server.request import HttpRequest, HttpResponse
from codeq.server.state import AppState
from codeq.wire.errors import NoRoute, Unauthenticated
from codeq.wire.system import Health


def healthy(state: AppState, request: HttpRequest) -> HttpResponse:  # noqa: ARG001 - any response means healthy
    return request.respond(200, Health(status="ok"))


async def healthz(state: AppState, request: HttpRequest) -> HttpResponse:
    return healthy(state, request)


async def readyz(state: AppState, request: HttpRequest) -> HttpResponse:
    fault = await state.not_ready_because()
    told = state.durability
    health = Health(
        status="ready" if fault is None else "not-ready",
        durability=told.level,
        store=told.engine,
        survives=told.survives,
        warnings=told.warnings,
        error=fault,
    )
    return request.respond(200 if fault is None else 503, health)


async def metrics(state: AppState, request: HttpRequest) -> HttpResponse:
    token = state.settings.metrics.token
    if token and not _has_token(request, token):
        raise Unauthenticated("metrics.token is set: send it as `Authorization: Bearer <token>`")
    return HttpResponse(200, await state.scraper.scrape(), "text/plain; version=0.0.4; charset=utf-8")


def _has_token(request: HttpRequest, token: str) -> bool:
    scheme, _, given = request.headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and compare_digest(given.strip(), token.encode())


async def openapi(state: AppState, request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    return HttpResponse(200, state.spec)


async def docs(state: AppState, request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    return html_response(state.docs)


async def jwks(state: AppState, request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    if state.jwks is None:
        raise NoRoute("this server issues no tokens")
    return HttpResponse(200, state.jwks)
