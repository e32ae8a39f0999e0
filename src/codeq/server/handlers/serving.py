"""What machines ask: is it alive, is it ready, what does it count, what can it do."""

from codeq.server.calls import Call, Reply
from codeq.server.errors import NoRoute
from codeq.server.service import Service
from codeq.usecases import inspect
from codeq.wire.queues import Health


async def healthz(service: Service, call: Call) -> Reply:  # noqa: ARG001 - answering at all is the answer
    return call.answer(200, Health(status="ok"))


async def readyz(service: Service, call: Call) -> Reply:
    fault = await service.not_ready_because()
    durability = service.settings.store.durability
    if fault is None:
        return call.answer(200, Health(status="ready", durability=durability))
    return call.answer(503, Health(status="not-ready", durability=durability, error=fault))


async def metrics(service: Service, call: Call) -> Reply:  # noqa: ARG001
    counts = await inspect.counts(service.core, None)
    text = service.metrics.render(counts, service.core.store.now_ms())
    return Reply(200, text, "text/plain; version=0.0.4; charset=utf-8")


async def openapi(service: Service, call: Call) -> Reply:  # noqa: ARG001
    return Reply(200, service.spec)


async def docs(service: Service, call: Call) -> Reply:  # noqa: ARG001
    return Reply(200, service.docs, "text/html; charset=utf-8")


async def jwks(service: Service, call: Call) -> Reply:  # noqa: ARG001
    if service.jwks is None:
        raise NoRoute("this server issues no tokens")
    return Reply(200, service.jwks)
