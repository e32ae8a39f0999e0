"""What this process tells the queue about itself when it claims: a name, the host, the process, the version."""

import itertools
import os
import re
import socket
from collections.abc import Sequence

from codeq.distribution import __version__
from codeq.domain.workers import WorkerInfo

_HOST_CHARS_MAX, _NAME_CHARS_MAX = 60, 24
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]")
_started = itertools.count(1)
"""Numbers the workers of this process, of which each needs a name."""


def claimer_info() -> WorkerInfo:
    """For claims that a program makes by itself."""
    host = _host()
    return WorkerInfo(name=f"{host}:{os.getpid()}", host=host, pid=os.getpid(), version=__version__)


def worker_info(label: str | None, *, slots: int, commands: Sequence[str]) -> WorkerInfo:
    """For a worker that starts: it is called `label@host:pid`, and numbered if it is not the first of its process."""
    host, pid, number = _host(), os.getpid(), next(_started)
    name = f"{host}:{pid}" if number == 1 else f"{host}:{pid}.{number}"
    if label:
        name = f"{_fitting(label, _NAME_CHARS_MAX)}@{name}"
    return WorkerInfo(name=name, host=host, pid=pid, version=__version__, slots=slots, commands=tuple(commands))


def _host() -> str:
    return _fitting(socket.gethostname(), _HOST_CHARS_MAX) or "unknown"


def _fitting(text: str, most: int) -> str:
    return _NOT_IN_NAMES.sub("-", text)[:most]
