"""New tasks as they travel to a server: checked, given an idempotency key, and encoded."""

import os
from collections.abc import Sequence
from itertools import count

import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import ATTEMPTS_MAX, ATTEMPTS_MIN, PAYLOAD_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN
from codeq.domain.requests import NewTask
from codeq.wire import tasks, times

Packed = tasks.PackedTask | InvalidRequest

pack = msgspec.msgpack.Encoder().encode


class TaskEncoder:
    """Gives every order a key, so that it can be sent again when the answer was lost."""

    def __init__(self) -> None:
        self._start()

    def pack(self, orders: Sequence[NewTask], *, trace_of_call: str | None) -> list[Packed]:
        """Per order: what is sent of it; or why it is not sent.

        A server forgives some faults to older clients, and hangs up on a body far past its limit. Here they are refused
        as the store itself does.
        """
        if self._pid != os.getpid():  # a forked child that went on with its parent's keys would lose its tasks to them
            self._start()
        return [self._packed(order, trace_of_call) for order in orders]

    def _packed(self, order: NewTask, trace_of_call: str | None) -> Packed:
        try:
            _check(order)
            return self._task(order, trace_of_call)
        except InvalidRequest as refusal:
            return refusal
        except (TypeError, ValueError, OverflowError, OSError, AttributeError) as fault:
            return InvalidRequest(f"the order cannot be sent: {fault}")

    def _start(self) -> None:
        self._pid = os.getpid()
        self._prefix = os.urandom(9).hex()
        self._numbers = count(1)

    def _task(self, order: NewTask, trace_of_call: str | None) -> tasks.PackedTask:
        backoff = order.backoff
        has_own_trace = order.trace_parent != trace_of_call
        return tasks.PackedTask(
            command=order.command,
            payload=order.payload,
            priority=order.priority,
            webhook=order.webhook,
            max_attempts=order.max_attempts or 0,
            idempotency_key=order.idempotency_key or f"{self._prefix}-{next(self._numbers)}",
            run_at=times.text(order.run_at_ms) if order.run_at_ms is not None else None,
            delay_seconds=order.delay_ms / 1000,
            backoff=None
            if backoff is None
            else tasks.Backoff(
                policy=backoff.kind.value, base_seconds=backoff.base_ms / 1000, max_seconds=backoff.max_ms / 1000
            ),
            trace_parent=order.trace_parent if has_own_trace else None,
            trace_state=order.trace_state if has_own_trace else None,
        )


def written(packed: Sequence[Packed]) -> tuple[Sequence[Packed], bytes]:
    """The body of a request for these orders; with a refusal in the place of each that cannot be written."""
    try:
        return packed, _body(packed)
    except (TypeError, ValueError, OverflowError):
        tried = [_tried(order) for order in packed]
        return tried, _body(tried)


def _body(packed: Sequence[Packed]) -> bytes:
    sent = [order for order in packed if isinstance(order, tasks.PackedTask)]
    return pack(sent[0] if len(sent) == 1 else {"tasks": sent})


def _tried(order: Packed) -> Packed:
    try:
        pack(order) if isinstance(order, tasks.PackedTask) else None
    except (TypeError, ValueError, OverflowError) as fault:
        return InvalidRequest(f"the order cannot be sent: {fault}")
    return order


def _check(order: NewTask) -> None:
    if not PRIORITY_MIN <= order.priority <= PRIORITY_MAX:
        raise InvalidRequest(f"priority must be from {PRIORITY_MIN} to {PRIORITY_MAX}, not {order.priority}")
    if order.max_attempts is not None and not ATTEMPTS_MIN <= order.max_attempts <= ATTEMPTS_MAX:
        raise InvalidRequest(f"max attempts must be from {ATTEMPTS_MIN} to {ATTEMPTS_MAX}, not {order.max_attempts}")
    if order.idempotency_key == "" or order.webhook == "":
        raise InvalidRequest("an idempotency key and a webhook are left out, or have at least one character")
    if order.run_at_ms is not None and order.run_at_ms < 0:
        raise InvalidRequest(f"a run time lies after 1970, not at {order.run_at_ms} ms")
    if len(order.payload) > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(
            f"the payload has {len(order.payload)} bytes, at most {PAYLOAD_BYTES_MAX} are taken; store it elsewhere "
            "and send a reference"
        )
