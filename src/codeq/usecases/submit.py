"""Ends tasks with their worker's result: accepted once, and only from the newest lease."""

from collections.abc import Sequence

from msgspec import Struct

from codeq.domain import lifecycle, validation
from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import BATCH_BYTES_MAX, RESULT_BYTES_MAX
from codeq.domain.requests import Outcome
from codeq.domain.task import Change, Status, Task
from codeq.usecases.core import Core, durable
from codeq.usecases.moves import move_each

_COMPLETED, _FAILED = Status.COMPLETED, Status.FAILED


class Submitted(Struct, frozen=True, gc=False):
    task: Task
    result: bytes | None
    """The stored result: the first submit's, should this one be a repeat."""


@durable
async def submit(core: Core, tenant: str, outcomes: Sequence[Outcome]) -> list[Submitted | CodeqError]:
    """Returns per outcome: the ended task, or why it was refused. A repeated outcome returns the same as the first."""
    if sum(len(outcome.result or b"") for outcome in outcomes) > BATCH_BYTES_MAX:
        raise InvalidRequest(f"a batch has at most {BATCH_BYTES_MAX} bytes of results")
    now_ms = core.store.now_ms()
    repeats: list[int] = []

    def decide(place: int, task: Task) -> Change | None:
        outcome = outcomes[place]
        if lifecycle.is_repeat(task, outcome.holder, outcome.status):
            repeats.append(place)
            return None
        return _change(core, task, outcome, now_ms)

    moved = await move_each(core, tenant, [outcome.task_id for outcome in outcomes], decide)
    answers: list[Submitted | CodeqError] = []
    for task, outcome in zip(moved, outcomes, strict=True):
        if isinstance(task, CodeqError):
            answers.append(task)
        else:
            answers.append(Submitted(task, outcome.result))
            core.slot_freed(task)
    if repeats:
        stored = await core.store.get_records(tenant, [outcomes[place].task_id for place in repeats])
        for place, record in zip(repeats, stored, strict=True):
            if record is not None:
                answers[place] = Submitted(record.task, record.result)
    return answers


def _change(core: Core, task: Task, outcome: Outcome, now_ms: int) -> Change:
    result = outcome.result
    if result is not None and len(result) > RESULT_BYTES_MAX:
        raise InvalidRequest(
            f"the result has {len(result)} bytes, at most {RESULT_BYTES_MAX} are taken; use an artifact"
        )
    retention_ms = core.retention_ms(task)
    if outcome.status is _COMPLETED:
        return lifecycle.complete(task, outcome.holder, now_ms, retention_ms=retention_ms, result=result)
    if outcome.status is _FAILED:
        error = validation.message(outcome.error or "")
        if not error:
            raise InvalidRequest("a failed task needs an error")
        return lifecycle.fail(task, outcome.holder, now_ms, error=error, retention_ms=retention_ms, result=result)
    raise InvalidRequest(f"a worker ends a task as COMPLETED or FAILED, not {outcome.status}")
