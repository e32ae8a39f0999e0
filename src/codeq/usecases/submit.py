"""Ends tasks with their worker's result: accepted once, and only from the newest lease."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from msgspec import Struct

from codeq.domain import lifecycle, validation
from codeq.domain.artifacts import Artifact
from codeq.domain.errors import CodeqError, InvalidRequest, StoreError
from codeq.domain.limits import BATCH_BYTES_MAX, RESULT_BYTES_MAX
from codeq.domain.requests import Outcome
from codeq.domain.task import Change, Status, Task
from codeq.usecases import artifacts
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core, durable
from codeq.usecases.moves import move_each

_COMPLETED, _FAILED = Status.COMPLETED, Status.FAILED
_artifacts_of = attrgetter("artifacts")


class Submitted(Struct, frozen=True, gc=False):
    task: Task
    result: bytes | None
    """The stored result: the first submit's, should this one be a repeat."""
    artifacts: Sequence[Artifact] = ()


@durable
async def submit(core: Core, tenant: str, outcomes: Sequence[Outcome]) -> list[Submitted | CodeqError]:
    """Returns per outcome: the ended task, or why it was refused. A repeated outcome returns the same as the first."""
    sizes = [len(outcome.result or b"") for outcome in outcomes]
    if sum(sizes) > BATCH_BYTES_MAX:
        raise InvalidRequest(f"a batch has at most {BATCH_BYTES_MAX} bytes of results")
    repeats: list[int] = []
    stored = await _store_artifacts(core, tenant, outcomes) if any(map(_artifacts_of, outcomes)) else {}
    now_ms = core.store.now_ms()

    def decide(place: int, task: Task) -> Change | None:
        outcome = outcomes[place]
        if task.status is outcome.status and lifecycle.is_repeat(task, outcome.holder, outcome.status):
            repeats.append(place)  # once: such a task is not in progress, so it is read from the store
            return None
        if not stored:
            return _change(core, task, outcome, now_ms)
        files = stored.get(place, ())
        if isinstance(files, CodeqError):
            raise files
        return _change(core, task, outcome, now_ms, files=files)

    ids = [outcome.task_id for outcome in outcomes]
    moved = await move_each(core, tenant, ids, decide, sizes=sizes, from_memory=True)
    answers = [
        task if isinstance(task, CodeqError) else Submitted(task, outcome.result)
        for task, outcome in zip(moved, outcomes, strict=True)
    ]
    if stored:
        _add_artifacts(stored, answers)
    if core.effective:
        _free_slots(core, answers)
    if repeats:
        await _answer_repeats(core, tenant, repeats, answers)
    return answers


def _add_artifacts(
    stored: Mapping[int, Sequence[Artifact] | CodeqError], answers: list[Submitted | CodeqError]
) -> None:
    for place, files in stored.items():
        answer = answers[place]
        if isinstance(answer, Submitted) and not isinstance(files, CodeqError):
            answers[place] = Submitted(answer.task, answer.result, files)


def _free_slots(core: Core, answers: Sequence[Submitted | CodeqError]) -> None:
    for answer in answers:
        if isinstance(answer, Submitted):
            core.slot_freed(answer.task)


async def _answer_repeats(
    core: Core, tenant: str, repeats: Sequence[int], answers: list[Submitted | CodeqError]
) -> None:
    """Puts the stored results into the answers, up to BATCH_BYTES_MAX; the rest keeps what was sent again."""
    budget = LoopBudget(core, tenant)
    size = 0
    for place in repeats:
        if len(repeats) > 1:
            await budget.yield_if_spent()
        answer = answers[place]
        if isinstance(answer, CodeqError) or size > BATCH_BYTES_MAX:
            continue
        [record] = await core.store.get_records(tenant, [answer.task.id])
        if record is not None:
            answers[place] = Submitted(record.task, record.result, record.artifacts)
            size += len(record.result or b"")


async def _store_artifacts(
    core: Core, tenant: str, outcomes: Sequence[Outcome]
) -> dict[int, Sequence[Artifact] | CodeqError]:
    """Stores the artifacts of every result that would be accepted now; of the others, returns the refusal.

    Before the results are committed: what a result names is there when it becomes visible.
    """
    found: dict[int, Sequence[Artifact] | CodeqError] = {}
    for place, outcome in enumerate(outcomes):
        if not outcome.artifacts:
            continue
        [task] = await core.store.get_tasks(tenant, [outcome.task_id])
        if task is None or lifecycle.is_repeat(task, outcome.holder, outcome.status):
            continue
        try:
            lifecycle.check_known(task, outcome.holder)
            artifacts.check(core, outcome.artifacts)
            _change(core, task, outcome, core.store.now_ms())
            found[place] = await artifacts.store(core, task, outcome.artifacts)
        except StoreError:
            raise
        except CodeqError as refusal:
            found[place] = refusal
    return found


def _change(core: Core, task: Task, outcome: Outcome, now_ms: int, *, files: Sequence[Artifact] = ()) -> Change:
    result = outcome.result
    if result is not None and len(result) > RESULT_BYTES_MAX:
        lifecycle.check_known(task, outcome.holder)
        validation.result(result)
    retention_ms = core.policy(task.tenant, task.command).retention_ms
    if outcome.status is _COMPLETED:
        return lifecycle.complete(
            task, outcome.holder, now_ms, retention_ms=retention_ms, result=result, artifacts=files
        )
    lifecycle.check_known(task, outcome.holder)
    if outcome.status is _FAILED:
        error = validation.message(outcome.error or "")
        if not error:
            raise InvalidRequest("a failed task needs an error")
        return lifecycle.fail(
            task, outcome.holder, now_ms, error=error, retention_ms=retention_ms, result=result, artifacts=files
        )
    raise InvalidRequest(f"a worker ends a task as COMPLETED or FAILED, not {outcome.status}")
