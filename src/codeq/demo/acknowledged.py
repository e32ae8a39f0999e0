"""Records every task that the server acknowledged, with the final state that the audit expects of it."""

from enum import StrEnum
from pathlib import Path

import msgspec

from codeq.domain.requests import NewTask


class FinalState(StrEnum):
    """How a task ends. `FAILED` and `DEAD` have the same status and differ in who decided."""

    COMPLETED = "completed"
    FAILED = "failed"
    """By its worker."""
    DEAD = "dead"
    """By running out of attempts."""
    CANCELLED = "cancelled"


class PlannedTask(msgspec.Struct, frozen=True):
    """A task to enqueue, and the final state it is designed to reach."""

    task: NewTask
    expected: FinalState


class AcknowledgedTask(msgspec.Struct):
    tenant: str
    task_id: str
    planned: PlannedTask
    expected: FinalState


class RepeatedEnqueue(msgspec.Struct, frozen=True):
    """A task that was enqueued again on purpose, with the same idempotency key."""

    tenant: str
    key: str
    first_id: str
    again_id: str


class AcknowledgedTasks:
    """Kept in memory for the audit, and written to a file that `--keep` leaves to the user."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("wb")
        self.tasks: list[AcknowledgedTask] = []
        self.repeats: list[RepeatedEnqueue] = []
        self.unanswered = 0
        """Tasks whose enqueue was given up without an answer: they may or may not exist."""
        self._by_id: dict[str, AcknowledgedTask] = {}

    def add(self, tenant: str, planned: PlannedTask, task_id: str) -> None:
        task = self._by_id[task_id] = AcknowledgedTask(tenant, task_id, planned, planned.expected)
        self.tasks.append(task)
        self._file.write(msgspec.json.encode({"tenant": tenant, "id": task_id, "key": planned.task.idempotency_key}))
        self._file.write(b"\n")

    def add_repeat(self, tenant: str, planned: PlannedTask, first_id: str, again_id: str) -> None:
        self.repeats.append(RepeatedEnqueue(tenant, planned.task.idempotency_key or "", first_id, again_id))

    def expect(self, task_id: str, state: FinalState) -> None:
        """Changes the final state that the audit expects of a task."""
        self._by_id[task_id].expected = state

    def close(self) -> None:
        self._file.close()
