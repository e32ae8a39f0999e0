"""What machines ask: is it alive, is it ready, what does it count, what can it do."""

from codeq.server.calls import Call, Reply
from codeq.server.parts import Parts
from codeq.usecases import inspect
from codeq.wire.errors import NoRoute
from codeq.wire.queues import Health


async def healthz(parts: Parts, call: Call) -> Reply:  # noqa: ARG001 - answering at all is the answer
    return call.answer(200, Health(status="ok"))


async def readyz(parts: Parts, call: Call) -> Reply:
    fault = await parts.not_ready_because()
    durability = parts.settings.store.durability
    if fault is None:
        return call.answer(200, Health(status="ready", durability=durability))
    return call.answer(503, Health(status="not-ready", durability=durability, error=fault))


async def metrics(parts: Parts, call: Call) -> Reply:  # noqa: ARG001
    counts = await inspect.counts(parts.core, None)
    text = parts.metrics.render(counts, parts.core.store.now_ms())
    return Reply(200, text, "text/plain; version=0.0.4; charset=utf-8")


async def openapi(parts: Parts, call: Call) -> Reply:  # noqa: ARG001
    return Reply(200, parts.spec)


async def docs(parts: Parts, call: Call) -> Reply:  # noqa: ARG001
    return Reply(200, parts.docs, "text/html; charset=utf-8")


async def jwks(parts: Parts, call: Call) -> Reply:  # noqa: ARG001
    if parts.jwks is None:
        raise NoRoute("this server issues no tokens")
    return Reply(200, parts.jwks)
