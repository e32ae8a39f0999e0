"""Whether a task matches a filter. Same for every engine."""

from codeq.domain import lifecycle
from codeq.domain.queue import is_system
from codeq.domain.requests import Filter
from codeq.domain.task import Task


def matches(task: Task, wanted: Filter) -> bool:
    return (
        _is_of(wanted, task.command)
        and (wanted.status is None or task.status is wanted.status)
        and (wanted.index is None or lifecycle.position(task) is wanted.index)
        and (wanted.error is None or wanted.error in f"{task.error or ''}\n{task.last_error or ''}")
        and wanted.created_from_ms <= task.created_ms < wanted.created_to_ms
        and (wanted.purge_to_ms is None or 0 < task.purge_ms <= wanted.purge_to_ms)
    )


def _is_of(wanted: Filter, command: str) -> bool:
    if wanted.command is None:
        return wanted.purge_to_ms is not None or not is_system(command)
    return command == wanted.command
