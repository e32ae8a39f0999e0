"""What the queue has promised: every task it acknowledged, and how that task must end."""

from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from codeq.domain.requests import NewTask


class End(StrEnum):
    """How a task may end, told apart by who decided it."""

    COMPLETED = "completed"
    FAILED = "failed"
    """By a worker's verdict."""
    DEAD = "dead"
    """By running out of tries."""
    CANCELLED = "cancelled"


class Order(msgspec.Struct, frozen=True):
    """A task to be, and the end it is meant to have."""

    task: NewTask
    end: End


class Receipt(msgspec.Struct):
    """An acknowledged order."""

    tenant: str
    task_id: str
    order: Order
    end: End


class Repeat(msgspec.Struct, frozen=True):
    """An order that was sent again on purpose, with the same key."""

    tenant: str
    key: str
    first_id: str
    again_id: str


class Ledger:
    """Kept in memory for the audit, and written to a file for those who want to look."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("wb")
        self.receipts: list[Receipt] = []
        self.repeats: list[Repeat] = []
        self.unanswered = 0
        """Orders that were given up without an answer: they may or may not have been taken."""
        self._by_id: dict[str, Receipt] = {}

    def acknowledge(self, tenant: str, order: Order, task_id: str) -> None:
        receipt = Receipt(tenant, task_id, order, order.end)
        self.receipts.append(receipt)
        self._by_id[task_id] = receipt
        self._file.write(msgspec.json.encode({"tenant": tenant, "id": task_id, "key": order.task.idempotency_key}))
        self._file.write(b"\n")

    def repeat(self, tenant: str, order: Order, first_id: str, again_id: str) -> None:
        self.repeats.append(Repeat(tenant, order.task.idempotency_key or "", first_id, again_id))

    def expect(self, task_id: str, end: End) -> None:
        """The plan for a task has changed."""
        self._by_id[task_id].end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
