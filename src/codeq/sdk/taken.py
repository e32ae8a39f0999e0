"""What became of a batch of orders, as the server told it."""

from collections.abc import Sequence
from typing import overload

import msgspec
from msgspec import Raw

from codeq.domain.errors import CodeqError
from codeq.domain.task import Task
from codeq.wire import reading, tasks
from codeq.wire.errors import error_of


class Given(tasks.Wire, frozen=True, kw_only=True, gc=False):
    """What became of one order: the task, still packed, or why it was refused."""

    task: Raw = msgspec.field(default_factory=Raw)
    error: str | None = None
    code: str | None = None


class GivenTasks(tasks.Wire, frozen=True, kw_only=True, gc=False):
    results: list[Given]


class Taken(Sequence[Task | CodeqError]):
    """What became of a batch. A task is read when it is asked for: of most, nobody wants more than that it is taken."""

    def __init__(self, items: Sequence[Raw | CodeqError]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> Task | CodeqError: ...
    @overload
    def __getitem__(self, place: slice) -> "Taken": ...
    def __getitem__(self, place: int | slice) -> "Task | CodeqError | Taken":
        if isinstance(place, slice):
            return Taken(self._items[place])
        item = self._items[place]
        if isinstance(item, CodeqError):
            return item
        try:
            return reading.task_of(_task(item))
        except (msgspec.DecodeError, ValueError) as fault:
            raise unreadable(bytes(item), fault) from None

    @property
    def refusals(self) -> list[CodeqError]:
        return [item for item in self._items if isinstance(item, CodeqError)]


def taken(body: bytes) -> Taken:
    return Taken(
        [item.task if item.code is None else error_of(item.code, item.error or "") for item in _given(body).results]
    )


def unreadable(body: bytes, fault: Exception) -> CodeqError:
    said = body[:200].decode("utf-8", "replace")
    return error_of("unreadable", f"the server's answer cannot be read ({fault}): {said}")


_given = msgspec.msgpack.Decoder(GivenTasks).decode
_task = msgspec.msgpack.Decoder(tasks.TaskView).decode
