"""The workers of a tenant as the registry has them, and how many of them claim from each queue."""

from collections import Counter

from codeq.domain.workers import WorkerStatus
from codeq.usecases.budget import LoopBudget, is_short
from codeq.usecases.core import Core
from codeq.usecases.worker_registry import KIND, decode_worker


async def registered(core: Core, tenant: str, budget: LoopBudget) -> list[WorkerStatus]:
    """Returns the workers that were heard from lately. Other calls run in between: a thousand workers with all the
    commands that they may name take some fifteen milliseconds."""
    entries = await core.store.registry.entries(KIND, tenant)
    found: list[WorkerStatus] = []
    for entry in entries:
        if budget.is_spent and not is_short(len(entries)):
            await budget.yield_if_spent()
        found.append(decode_worker(entry.value))
    return found


class Attendance:
    """How many workers claim from each queue of a tenant."""

    def __init__(self) -> None:
        self._on_all = 0
        self._on: Counter[str] = Counter()

    @classmethod
    async def of(cls, core: Core, tenant: str, budget: LoopBudget) -> "Attendance":
        attendance = cls()
        workers = await registered(core, tenant, budget)
        for worker in workers:
            if budget.is_spent and not is_short(len(workers)):
                await budget.yield_if_spent()
            attendance._add(worker)
        return attendance

    def workers_on(self, command: str) -> int:
        return self._on_all + self._on[command]

    def _add(self, worker: WorkerStatus) -> None:
        if worker.commands is None:
            self._on_all += 1
        else:
            self._on.update(set(worker.commands))
