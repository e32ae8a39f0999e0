"""Tasks that this process has leased, as it last saw them: a result is then one round trip instead of two."""

from collections import OrderedDict
from collections.abc import Sequence

from codeq.domain import lifecycle
from codeq.domain.queue import Index
from codeq.domain.task import Change, Task

TASKS_MAX = 20_000
"""Remembered per shard: about 20 MB. Others are read."""

_IN_PROGRESS = Index.IN_PROGRESS


class LeasedTasks:
    def __init__(self) -> None:
        self._tasks: OrderedDict[str, Task] = OrderedDict()

    def get(self, ids: Sequence[str]) -> list[Task | None]:
        return [self._tasks.get(task_id) for task_id in ids]

    def add(self, tasks: Sequence[Task]) -> None:
        known = self._tasks
        for task in tasks:
            known[task.id] = task
        while len(known) > TASKS_MAX:
            known.popitem(last=False)

    def moved(self, changes: Sequence[Change], tasks: Sequence[Task | None]) -> None:
        """Notes what each change has made of its task; None for a refusal: then somebody else has moved it."""
        known = self._tasks
        for change, task in zip(changes, tasks, strict=True):
            if change.before is not None and (task_id := change.after.id) in known:
                if task is not None and lifecycle.position(task) is _IN_PROGRESS:
                    known[task_id] = task
                else:
                    del known[task_id]
