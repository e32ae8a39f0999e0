"""Tasks that this process has leased, as it last saw them: a result is then one round trip instead of two."""

from collections import OrderedDict
from collections.abc import Sequence

from codeq.domain import lifecycle
from codeq.domain.queue import Index
from codeq.domain.task import Task

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

    def moved(self, task_id: str, task: Task | None) -> None:
        """Notes what a change has made of a task; None for a refusal: then somebody else has moved it."""
        if task_id in self._tasks:
            if task is not None and lifecycle.position(task) is _IN_PROGRESS:
                self._tasks[task_id] = task
            else:
                del self._tasks[task_id]
