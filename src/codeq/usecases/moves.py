"""Moves tasks by id: reads, lets the lifecycle decide, commits, and retries where another call was faster."""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from codeq.domain.errors import CodeqError, InvalidRequest, NotFound, StaleTask, StoreError
from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.domain.task import Change, Task
from codeq.usecases.budget import LoopBudget, fit_into_piece, is_short, pieces
from codeq.usecases.core import Core

_TRIES = 4

Decide = Callable[[int, Task], Change | None]
"""Maps an item's index and its task to a change, or to None to leave the task as it is. May raise CodeqError."""


def move_each(
    core: Core,
    tenant: str,
    ids: Sequence[str],
    decide: Decide,
    *,
    sizes: Sequence[int] = (),
    from_memory: bool = False,
) -> Awaitable[list[Task | CodeqError]]:
    """Returns per id: the task after its change, or why it was refused. One refusal does not affect the others.

    `sizes` is how many bytes each change writes, where these may be many. Other calls run between the pieces of a
    large batch. `from_memory` saves the read of tasks that this process has leased; for changes that depend on nothing
    that a heartbeat changes, as heartbeats leave the version as it is.
    """
    if len(ids) > BATCH_TASKS_MAX:
        raise InvalidRequest(f"a batch has at most {BATCH_TASKS_MAX} items, not {len(ids)}")
    size = sum(sizes)
    if is_short(len(ids), size):
        return _move_piece(core, tenant, ids, decide, from_memory=from_memory)
    parts = [ids] if fit_into_piece(len(ids), size) else pieces(ids, sizes or [0] * len(ids))
    return _move_in_pieces(core, tenant, parts, decide, from_memory=from_memory)


async def _move_in_pieces(
    core: Core, tenant: str, parts: Iterable[Sequence[str]], decide: Decide, *, from_memory: bool
) -> list[Task | CodeqError]:
    budget = LoopBudget(core, tenant)
    moved: list[Task | CodeqError] = []
    for piece in parts:
        await budget.yield_if_spent()
        moved += await _move_piece(core, tenant, piece, decide, first=len(moved), from_memory=from_memory)
    return moved


async def _move_piece(
    core: Core, tenant: str, ids: Sequence[str], decide: Decide, *, first: int = 0, from_memory: bool
) -> list[Task | CodeqError]:
    """Moves these tasks, of which the first has the index `first`."""
    seen = await core.store.get_tasks(tenant, ids, from_memory=True) if from_memory and not core.store.is_local else ()
    answers: list[Task | CodeqError] = [StaleTask("the task kept changing; try again")] * len(ids)
    places: Sequence[int] = range(len(ids))
    if any(seen):
        places = await _move_seen(core, seen, decide, answers, first=first)
    for _ in range(_TRIES if places else 0):
        wanted = ids if len(places) == len(ids) else [ids[place] for place in places]
        tasks = await core.store.get_tasks(tenant, wanted)
        changes, changing, others = _decided(decide, zip(places, tasks, strict=True), ids, first=first)
        for place, answer in others.items():
            answers[place] = answer
        places = []
        for place, committed in zip(changing, await core.commit(changes), strict=True):
            if committed is None:
                places.append(place)
            else:
                answers[place] = committed
        if not places:
            break
    return answers


async def _move_seen(
    core: Core, seen: Sequence[Task | None], decide: Decide, answers: list[Task | CodeqError], *, first: int
) -> list[int]:
    """Moves tasks as they were last seen. Returns the places of all others: those that were not seen, that have moved
    since, and that would be refused, because they may have moved since."""
    tasks = [(place, task) for place, task in enumerate(seen) if task is not None]
    changes, changing, _ = _decided(decide, tasks, (), first=first)
    moved = dict(zip(changing, await core.commit(changes) if changes else (), strict=True))
    left: list[int] = []
    for place in range(len(seen)):
        task = moved.get(place)
        if task is None:
            left.append(place)
        else:
            answers[place] = task
    return left


def _decided(
    decide: Decide, tasks: Iterable[tuple[int, Task | None]], ids: Sequence[str], *, first: int
) -> tuple[list[Change], list[int], dict[int, Task | CodeqError]]:
    """Returns the changes of these tasks with their places, and by place the answers of those that do not change."""
    changes: list[Change] = []
    changing: list[int] = []
    others: dict[int, Task | CodeqError] = {}
    for place, task in tasks:
        if task is None:
            others[place] = NotFound(f"there is no task {ids[place][:64]!r}")
            continue
        try:
            change = decide(first + place, task)
        except StoreError:
            raise
        except CodeqError as refusal:
            others[place] = refusal
            continue
        if change is None:
            others[place] = task
        else:
            changes.append(change)
            changing.append(place)
    return changes, changing, others


async def move_one(
    core: Core, tenant: str, task_id: str, decide: Callable[[Task], Change | None], *, from_memory: bool = False
) -> Task:
    """Moves one task as `move_each` does; raises the refusal."""
    [answer] = await move_each(core, tenant, [task_id], lambda _, task: decide(task), from_memory=from_memory)
    if isinstance(answer, CodeqError):
        raise answer
    return answer
