"""What became of a batch of orders, as the server told it."""

from collections.abc import Sequence
from typing import overload

import msgspec
from msgspec import Raw

from codeq.domain.errors import CodeqError
from codeq.domain.task import Task
from codeq.sdk.http_client import unreadable
from codeq.wire import tasks, to_domain
from codeq.wire.client import EnqueueResultList
from codeq.wire.errors import error_of


class EnqueueResults(Sequence[Task | CodeqError]):
    """What became of a batch. A task is read when it is asked for: of most, nobody wants more than that it is taken."""

    def __init__(self, items: Sequence[Raw | CodeqError]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> Task | CodeqError: ...
    @overload
    def __getitem__(self, place: slice) -> "EnqueueResults": ...
    def __getitem__(self, place: int | slice) -> "Task | CodeqError | EnqueueResults":
        if isinstance(place, slice):
            return EnqueueResults(self._items[place])
        item = self._items[place]
        if isinstance(item, CodeqError):
            return item
        try:
            return to_domain.task_of(_task(item))
        except (msgspec.DecodeError, ValueError) as fault:
            raise unreadable(bytes(item), fault) from None

    @property
    def refusals(self) -> list[CodeqError]:
        return [item for item in self._items if isinstance(item, CodeqError)]


def enqueue_results(body: bytes) -> EnqueueResults:
    return EnqueueResults(
        [item.task if item.code is None else error_of(item.code, item.error or "") for item in _given(body).results]
    )


_given = msgspec.msgpack.Decoder(EnqueueResultList).decode
_task = msgspec.msgpack.Decoder(tasks.TaskView).decode
