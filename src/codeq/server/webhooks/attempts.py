"""Makes one attempt at a delivery, and records how it ended.

breaker of the host ─▶ slot of the host ─▶ Sender.send ─▶ 2xx: delivered   410: dead   else: failed
       └ open: handed back   └ none in time: handed back  └ no look-up in time: handed back
         (for days: dead)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest, StoreBusy, StoreFull, StoreUnavailable
from codeq.domain.limits import WEBHOOK_WAIT_MS_MAX
from codeq.domain.requests import Delivery
from codeq.domain.result_callbacks import ResultCallback
from codeq.domain.task import Task
from codeq.server.logs import log
from codeq.server.tracing import Tracing
from codeq.server.webhooks.breaker import Breakers
from codeq.server.webhooks.metrics import RESULT, WebhookMetrics
from codeq.server.webhooks.sender import Answer, Sender, SendFailed, Webhook
from codeq.server.webhooks.slots import HostSlots
from codeq.usecases import deliver
from codeq.usecases.core import Core
from codeq.wire import times
from codeq.wire.artifacts import artifact_view
from codeq.wire.webhooks import CallbackBody

HOST_WAIT_S = 5.0
"""How long a delivery waits for a slot of its host before it is handed back."""
RETRY_S = 1.0
BREAKER_PAUSE_S = 0.25
"""How long a delivery keeps its slot before it is handed back because of an open breaker: a tenant with many of them
would else have them taken and returned as fast as the store can."""
RECORD_TRIES = 10
GONE, TOO_MANY = 410, 429
PASSING = (StoreBusy, StoreFull, StoreUnavailable)

Record = Callable[[], Awaitable[Task | CodeqError]]
"""Records the outcome of an attempt. May be repeated."""


class Attempts:
    def __init__(
        self,
        core: Core,
        sender: Sender,
        hosts: HostSlots,
        *,
        metrics: WebhookMetrics,
        tracing: Tracing | None = None,
        breakers: Breakers | None = None,
    ) -> None:
        self._core = core
        self._sender = sender
        self._hosts = hosts
        self._metrics = metrics
        self._tracing = tracing or Tracing()
        self._breakers = breakers or Breakers()

    @property
    def open_breakers(self) -> int:
        return self._breakers.open

    async def run(self, delivery: Delivery) -> None:
        """Makes the attempt. If it is cancelled, the delivery is handed back: the receiver may have got it."""
        record: Record = lambda: deliver.hand_back(self._core, delivery)  # noqa: E731 - until there is an outcome
        try:
            record = await self._attempt(delivery)
            await self._record(delivery, record)
        except asyncio.CancelledError:
            await self._record(delivery, record)
            raise

    async def _attempt(self, delivery: Delivery) -> Record:
        """Sends the delivery, if its host may be sent to. Returns what records the outcome."""
        core, tenant = self._core, delivery.task.tenant
        await core.turns.wait(tenant)  # receivers that answer at once must not use up the event loop
        try:
            callback = deliver.read(delivery)
            host = self._sender.rules.check(callback.url).origin
        except (ValueError, InvalidRequest) as fault:
            refusal = f"refused: {fault}"
            return lambda: self._dead(delivery, "", refusal)
        wait_s = self._breakers.wait_s(tenant, host)
        if wait_s and self._has_waited_long(delivery.task):
            return lambda: self._dead(delivery, callback.command, "given up: the host has failed for days")
        if wait_s:
            await asyncio.sleep(BREAKER_PAUSE_S)
            delay_ms = round(wait_s * 1000 * (1 + core.random() / 4))  # not all at once
            return lambda: deliver.hand_back(core, delivery, delay_ms=delay_ms)
        try:
            async with self._hosts.slot(tenant, host, wait_s=HOST_WAIT_S):
                return await self._send(delivery, callback, host)
        except TimeoutError:
            return self._not_tried(delivery, host)

    def _has_waited_long(self, task: Task) -> bool:
        """One that was replayed has waited anew once as many trials have failed as it has attempts."""
        age_ms = self._core.now_ms() - task.created_ms
        return age_ms > WEBHOOK_WAIT_MS_MAX and task.deliveries > task.max_attempts

    def _not_tried(self, delivery: Delivery, host: str) -> Record:
        self._breakers.trial_not_made(delivery.task.tenant, host)
        return lambda: deliver.hand_back(self._core, delivery, delay_ms=round(RETRY_S * 1000))

    async def _send(self, delivery: Delivery, callback: ResultCallback, host: str) -> Record:
        task = delivery.task
        began_s = monotonic()
        answer: Answer | None = None
        try:
            answer = await self._post(delivery, callback, host)
            reason = f"HTTP {answer.status}"
        except SendFailed as failed:
            if not failed.is_tried:
                return self._not_tried(delivery, host)
            reason = f"refused: {failed}" if failed.is_refused else str(failed)
        except Exception as fault:  # noqa: BLE001 - a receiver may send anything; what nobody thought of must end its delivery only
            log(logging.ERROR, "a delivery failed unexpectedly", exc_info=fault, delivery=task.id)
            reason = "internal error"
        took_s = monotonic() - began_s
        self._metrics.attempted(took_s, "none" if answer is None else f"{answer.status // 100}xx")
        if answer is not None and answer.is_success:
            self._breakers.succeeded(task.tenant, host)
            status = answer.status
            return lambda: self._delivered(delivery, callback, status=status, took_s=took_s)
        if answer is None or answer.status >= 500 or answer.status == TOO_MANY:
            self._breakers.failed(task.tenant, host)
        else:
            self._breakers.succeeded(task.tenant, host)  # it answers, if not as one would wish
        log(logging.DEBUG, "webhook failed", delivery=task.id, tenant=task.tenant, host=host, reason=reason)
        if answer is not None and answer.status == GONE:
            return lambda: self._dead(delivery, callback.command, reason)
        retry_after_ms = answer.retry_after_ms if answer is not None else None
        return lambda: self._failed(delivery, callback, reason, retry_after_ms=retry_after_ms)

    async def _post(self, delivery: Delivery, callback: ResultCallback, host: str) -> Answer:
        body = delivery.body
        with self._tracing.webhook(
            RESULT, body.trace_parent, body.trace_state, host=host, attempt=delivery.task.attempts + 1
        ) as headers:
            return await self._sender.send(
                Webhook(
                    tenant=delivery.task.tenant,
                    id=delivery.task.id,
                    url=callback.url,
                    body=body_of(callback),
                    headers=headers,
                )
            )

    async def _record(self, delivery: Delivery, record: Record) -> None:
        """Records the outcome, again and again if the store fails for a while. If that takes longer than the lease, the
        delivery is made again: this is when a receiver gets one twice."""
        for tries in range(RECORD_TRIES):
            try:
                answer = await record()
            except PASSING as fault:
                log(logging.WARNING, "the outcome of a delivery is not recorded yet", fault=str(fault), tries=tries)
                await asyncio.sleep(RETRY_S)
            else:
                if isinstance(answer, CodeqError):
                    log(logging.WARNING, "a delivery was made by another attempt too", delivery=delivery.task.id)
                return

    async def _delivered(
        self, delivery: Delivery, callback: ResultCallback, *, status: int, took_s: float
    ) -> Task | CodeqError:
        answer = await deliver.delivered(self._core, delivery, status=status, ms=round(took_s * 1000))
        if isinstance(answer, Task):
            self._metrics.delivered(RESULT, callback.command, is_success=True)
        return answer

    async def _failed(
        self, delivery: Delivery, callback: ResultCallback, reason: str, *, retry_after_ms: int | None
    ) -> Task | CodeqError:
        answer = await deliver.failed(self._core, delivery, reason, retry_after_ms=retry_after_ms)
        self._count_dead(answer, callback.command)
        return answer

    async def _dead(self, delivery: Delivery, command: str, reason: str) -> Task | CodeqError:
        answer = await deliver.failed(self._core, delivery, reason, is_last=True)
        self._count_dead(answer, command)
        return answer

    def _count_dead(self, answer: Task | CodeqError, command: str) -> None:
        if isinstance(answer, Task) and answer.is_dead:
            self._metrics.delivered(RESULT, command, is_success=False)
            log(
                logging.INFO,  # tenants must not be able to fill a log with warnings
                "a delivery is dead",
                delivery=answer.id,
                tenant=answer.tenant,
                reason=answer.last_error,
                attempts=answer.attempts,
            )


def body_of(callback: ResultCallback) -> bytes:
    """Returns the body of a callback, with the names of the original codeQ."""
    return msgspec.json.encode(
        CallbackBody(
            task_id=callback.task_id,
            event_type=callback.command,
            status=callback.status,
            result=callback.result,
            error=callback.error,
            artifacts=[artifact_view(callback.task_id, each) for each in callback.artifacts],
            completed_at=times.text(callback.ended_ms),
            attempts=callback.attempts,
            last_error=callback.last_error,
        )
    )
