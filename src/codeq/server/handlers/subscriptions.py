"""Routes for subscriptions: workers subscribe, renew and unsubscribe; operators list and delete."""

from collections.abc import Sequence

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import SUBSCRIPTION_INTERVAL_MS_DEFAULT, SUBSCRIPTION_TTL_MS_DEFAULT
from codeq.domain.subscriptions import DeliveryMode, Subscription
from codeq.server.auth.principal import EVERY_COMMAND
from codeq.server.request import HttpRequest, HttpResponse, Parser
from codeq.server.state import AppState
from codeq.usecases import subscriptions as usecases
from codeq.usecases.budget import LoopBudget
from codeq.wire import subscriptions as wire
from codeq.wire.errors import Forbidden

SUBSCRIBE = Parser(wire.Subscribe)
RENEW = Parser(wire.RenewSubscription)

_MODES = {mode.value: mode for mode in DeliveryMode}


async def subscribe(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(SUBSCRIBE)
    mode = _MODES.get(message.delivery_mode)
    if mode is None:
        raise InvalidRequest(f"deliveryMode must be one of {', '.join(_MODES)}")
    interval_s = message.min_interval_seconds
    wanted = Subscription(
        id="",
        tenant=request.tenant,
        owner=request.principal.subject,
        url=message.callback_url,
        commands=_commands(request, message.event_types),
        mode=mode,
        group=message.group_id or None,
        min_interval_ms=SUBSCRIPTION_INTERVAL_MS_DEFAULT if interval_s is None else round(interval_s * 1000),
        ttl_ms=round(message.ttl_seconds * 1000) or SUBSCRIPTION_TTL_MS_DEFAULT,
        created_ms=0,
        expires_ms=0,
    )
    made = await usecases.subscribe(state.core, wanted)
    if state.notifier is not None:
        state.notifier.subscribed(made)
    return request.respond(200, wire.subscribed(made))


async def renew_subscription(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(RENEW) if request.body else wire.RenewSubscription()
    await _check_commands(state, request)
    ttl_ms = round(message.ttl_seconds * 1000) or None
    renewed = await usecases.renew(state.core, request.tenant, request.params["id"], ttl_ms=ttl_ms)
    if state.notifier is not None:
        state.notifier.subscribed(renewed)
    return request.respond(200, wire.subscribed(renewed))


async def unsubscribe(state: AppState, request: HttpRequest) -> HttpResponse:
    await _check_commands(state, request)
    return await delete_subscription(state, request)


async def list_subscriptions(state: AppState, request: HttpRequest) -> HttpResponse:
    found = await usecases.all_of(state.core, request.tenant)
    budget = LoopBudget(state.core, request.tenant)
    return await request.respond_in_pieces(
        200, map(wire.view, found), lambda parts: wire.SubscriptionViews(subscriptions=parts), budget
    )


async def delete_subscription(state: AppState, request: HttpRequest) -> HttpResponse:
    await usecases.unsubscribe(state.core, request.tenant, request.params["id"])
    if state.notifier is not None:
        state.notifier.unsubscribed(request.tenant, request.params["id"])
    return HttpResponse(204)


def _commands(request: HttpRequest, wanted: list[str] | None) -> tuple[str, ...] | None:
    """Returns the commands to subscribe to, all of which the token must allow; None for all."""
    allowed = request.principal.commands
    if EVERY_COMMAND in allowed:
        return tuple(dict.fromkeys(wanted)) if wanted else None
    if wanted and not allowed.issuperset(wanted):
        raise Forbidden("event type not allowed: the token's eventTypes do not include every command asked for")
    return tuple(dict.fromkeys(wanted)) if wanted else tuple(sorted(allowed))


async def _check_commands(state: AppState, request: HttpRequest) -> None:
    """Refuses subscriptions to commands that the token does not name."""
    allowed = request.principal.commands
    if EVERY_COMMAND in allowed:
        return
    known = await usecases.get(state.core, request.tenant, request.params["id"])
    named: Sequence[str] = known.commands if known.commands is not None else (EVERY_COMMAND,)
    if not allowed.issuperset(named):
        raise Forbidden("event type not allowed: the token's eventTypes do not include the subscription's commands")
