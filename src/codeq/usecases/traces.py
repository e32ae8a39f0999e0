"""The traces in which tasks were created, for spans that link to them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from codeq.domain.limits import TRACE_LINK_BYTES_MAX, TRACE_LINKS_MAX
from codeq.domain.task import Task

if TYPE_CHECKING:
    from codeq.usecases.core import Core


class Spans(Protocol):
    """Opens the spans of use cases that no caller has asked for."""

    def sweep(self, move: str, trace_parents: Sequence[str], tasks: int) -> AbstractContextManager[Any]: ...


async def trace_parents(core: "Core", tenant: str, ids: Sequence[str]) -> list[str]:
    """Returns the `traceparent` of the first of these tasks, as `created_in` does."""
    tasks = await core.store.get_tasks(tenant, ids[:TRACE_LINKS_MAX])
    return await created_in(core, [task for task in tasks if task is not None])


async def created_in(core: "Core", tasks: Sequence[Task]) -> list[str]:
    """Returns the `traceparent` with which the tasks were created, of up to TRACE_LINKS_MAX of them.

    Reads their bodies, so it stops after TRACE_LINK_BYTES_MAX of payload. Only for a server that traces.
    """
    parents: list[str] = []
    payload_bytes = 0
    for task in tasks:
        if task.trace_id is None:
            continue
        if len(parents) == TRACE_LINKS_MAX or payload_bytes > TRACE_LINK_BYTES_MAX:
            break
        payload_bytes += task.payload_bytes
        [record] = await core.store.get_records(task.tenant, [task.id])
        if record is not None and record.body.trace_parent:
            parents.append(record.body.trace_parent)
    return parents
