"""New tasks as they travel to a server: checked, given an idempotency key, and encoded."""

import os
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import msgspec

from codeq.domain import validation
from codeq.domain.errors import InvalidRequest
from codeq.domain.requests import NewTask
from codeq.wire import tasks, times

PackedOrRefused = tasks.PackedTask | InvalidRequest

pack = msgspec.msgpack.Encoder().encode


def new_request_id() -> str:
    """Returns an id for a claim, with which the claim can be sent again if its answer was lost."""
    return os.urandom(12).hex()


class EncodedTasks(NamedTuple):
    body: bytes
    """The request; without the tasks that were refused here."""
    sent: int
    refusals: dict[int, InvalidRequest]
    """By the index of the new task."""


class TaskEncoder:
    """Gives every new task an idempotency key, so that it can be sent again when the answer was lost."""

    def __init__(self) -> None:
        self._start_keys()

    def encode(self, new_tasks: Sequence[NewTask], *, trace_of_call: str | None) -> EncodedTasks:
        """Encodes one request for these tasks.

        The limits are checked here because a server corrects some values for older clients, and closes the connection
        on a body that is far too large.
        """
        if self._pid != os.getpid():  # a forked child that continued its parent's keys would lose its tasks to them
            self._start_keys()
        packed = [self._packed(new_task, trace_of_call) for new_task in new_tasks]
        try:
            return _encoded(packed)
        except (TypeError, ValueError, OverflowError):  # subclasses of str and bytes, for instance
            return _encoded([_refuse_unencodable(message) for message in packed])

    def _start_keys(self) -> None:
        self._pid = os.getpid()
        self._prefix = os.urandom(9).hex()
        self._numbers = count(1)

    def _packed(self, new_task: NewTask, trace_of_call: str | None) -> PackedOrRefused:
        try:
            validation.new_task(new_task)
            key = new_task.idempotency_key or f"{self._prefix}-{next(self._numbers)}"
            return packed_task(new_task, key, has_own_trace=new_task.trace_parent != trace_of_call)
        except InvalidRequest as refusal:
            return refusal
        except (TypeError, ValueError, OverflowError, OSError, AttributeError) as fault:
            return InvalidRequest(f"the task cannot be sent: {fault}")


def packed_task(new_task: NewTask, key: str, *, has_own_trace: bool = False) -> tasks.PackedTask:
    """The message of a new task, under this idempotency key."""
    return tasks.PackedTask(
        command=new_task.command,
        payload=new_task.payload,
        priority=new_task.priority,
        webhook=new_task.webhook,
        max_attempts=new_task.max_attempts or 0,
        idempotency_key=key,
        run_at=times.text(new_task.run_at_ms) if new_task.run_at_ms is not None else None,
        delay_seconds=new_task.delay_ms / 1000 if new_task.delay_ms else 0,
        backoff=tasks.backoff_fields(new_task.backoff) if new_task.backoff else None,
        trace_parent=new_task.trace_parent if has_own_trace else None,
        trace_state=new_task.trace_state if has_own_trace else None,
    )


def _encoded(packed: Sequence[PackedOrRefused]) -> EncodedTasks:
    refusals = {index: message for index, message in enumerate(packed) if not isinstance(message, tasks.PackedTask)}
    sent = [message for message in packed if isinstance(message, tasks.PackedTask)] if refusals else packed
    return EncodedTasks(pack(sent[0] if len(sent) == 1 else {"tasks": sent}), len(sent), refusals)


def _refuse_unencodable(message: PackedOrRefused) -> PackedOrRefused:
    try:
        pack(message) if isinstance(message, tasks.PackedTask) else None
    except (TypeError, ValueError, OverflowError) as fault:
        return InvalidRequest(f"the task cannot be sent: {fault}")
    return message
