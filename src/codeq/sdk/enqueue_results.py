"""The server's answer to a batch enqueue."""

from collections.abc import Sequence
from typing import overload

import msgspec

from codeq.domain.errors import CodeqError
from codeq.domain.task import Task as Record
from codeq.sdk.http_client import unreadable
from codeq.sdk.tasks import replayed
from codeq.wire import tasks, to_domain
from codeq.wire.client import EnqueueResult, EnqueueResultList
from codeq.wire.errors import error_of


class EnqueueResults(Sequence[Record | CodeqError]):
    """Results of a batch enqueue, decoded lazily because most callers only check for errors."""

    def __init__(self, items: Sequence[EnqueueResult | CodeqError]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Record | CodeqError: ...
    @overload
    def __getitem__(self, index: slice) -> "EnqueueResults": ...
    def __getitem__(self, index: int | slice) -> "Record | CodeqError | EnqueueResults":
        if isinstance(index, slice):
            return EnqueueResults(self._items[index])
        item = self._items[index]
        if isinstance(item, CodeqError):
            return item
        try:
            task = to_domain.task_of(_decode_task(item.task))
        except (msgspec.DecodeError, ValueError) as fault:
            raise unreadable(bytes(item.task), fault) from None
        return replayed(task, is_mismatch=item.mismatched) if item.replayed else task

    @property
    def refusals(self) -> list[CodeqError]:
        return [item for item in self._items if isinstance(item, CodeqError)]


def enqueue_results(body: bytes) -> EnqueueResults:
    items = _decode_results(body).results
    return EnqueueResults([item if item.code is None else error_of(item.code, item.error or "") for item in items])


_decode_results = msgspec.msgpack.Decoder(EnqueueResultList).decode
_decode_task = msgspec.msgpack.Decoder(tasks.TaskView).decode
