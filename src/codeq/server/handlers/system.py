"""Routes for machines: health, readiness, metrics, the description of the API, the keys of a development server."""

from codeq.server.request import HttpRequest, HttpResponse
from codeq.server.state import AppState
from codeq.usecases import queries
from codeq.wire.errors import NoRoute
from codeq.wire.system import Health


async def healthz(state: AppState, request: HttpRequest) -> HttpResponse:  # noqa: ARG001 - answering at all is the answer
    return request.respond(200, Health(status="ok"))


async def readyz(state: AppState, request: HttpRequest) -> HttpResponse:
    fault = await state.not_ready_because()
    durability = state.settings.store.durability
    if fault is None:
        return request.respond(200, Health(status="ready", durability=durability))
    return request.respond(503, Health(status="not-ready", durability=durability, error=fault))


async def metrics(state: AppState, request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    counts = await queries.counts(state.core, None)
    text = state.metrics.render(counts, state.core.now_ms())
    return HttpResponse(200, text, "text/plain; version=0.0.4; charset=utf-8")


async def openapi(state: AppState, request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    return HttpResponse(200, state.spec)


async def docs(state: AppState, request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    return HttpResponse(200, state.docs, "text/html; charset=utf-8")


async def jwks(state: AppState, request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    if state.jwks is None:
        raise NoRoute("this server issues no tokens")
    return HttpResponse(200, state.jwks)
