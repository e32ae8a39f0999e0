"""What this process tells the queue about itself when it claims: a name, the host, the process, the version."""

import itertools
import os
import re
import socket
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

from msgspec import Struct, structs

from codeq.distribution import __version__
from codeq.domain import workers as stored
from codeq.domain.workers import WorkerInfo
from codeq.sdk.tasks import moment

_HOST_CHARS_MAX, _NAME_CHARS_MAX = 60, 24
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]")
_started = itertools.count(1)
"""Numbers the workers of this process, of which each needs a name."""


class WorkerStatus(Struct, frozen=True, kw_only=True, gc=False):
    """A worker that was heard from lately, or that holds tasks."""

    name: str
    subject: str
    """The subject of its token."""
    host: str
    pid: int
    version: str
    slots: int
    commands: tuple[str, ...] | None
    """None for every command."""
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    """None if it holds tasks, but was not heard from for so long that it counts as gone."""
    holds: int
    """How many tasks it has in progress."""
    tasks: tuple[str, ...]
    """The ids of some of them."""

    def works_on(self, command: str) -> bool:
        """Whether it would get tasks of this command."""
        return self.last_seen_at is not None and (self.commands is None or command in self.commands)


def worker_status(found: stored.WorkerStatus) -> WorkerStatus:
    fields = structs.asdict(found)
    for name in ("first_seen", "last_seen"):
        at_ms = fields.pop(f"{name}_ms")
        fields[f"{name}_at"] = moment(at_ms) if at_ms else None
    return WorkerStatus(**fields)


def claimer_info() -> WorkerInfo:
    """For claims that a program makes by itself."""
    return _info_of(os.getpid())


def worker_info(label: str | None, *, slots: int, commands: Sequence[str]) -> WorkerInfo:
    """For a worker that starts: it is called `label@host:pid`, and numbered if it is not the first of its process."""
    host, pid, number = _host(), os.getpid(), next(_started)
    name = f"{host}:{pid}" if number == 1 else f"{host}:{pid}.{number}"
    if label:
        name = f"{_fitting(label, _NAME_CHARS_MAX)}@{name}"
    return WorkerInfo(name=name, host=host, pid=pid, version=__version__, slots=slots, commands=tuple(commands))


@lru_cache(maxsize=1)
def _info_of(pid: int) -> WorkerInfo:
    host = _host()
    return WorkerInfo(name=f"{host}:{pid}", host=host, pid=pid, version=__version__)


def _host() -> str:
    return _fitting(socket.gethostname(), _HOST_CHARS_MAX) or "unknown"


def _fitting(text: str, most: int) -> str:
    return _NOT_IN_NAMES.sub("-", text)[:most]
