"""Keeps processes that handlers fork from taking signals as their worker does.

A fork inherits the handlers of its parent, and the pipe by which signals wake the event loop. So SIGTERM, with which
`multiprocessing` ends its processes, would not end the fork, and would stop the worker instead.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

_before: dict[signal.Signals, Any] = {}
"""How signals were handled before this process became a worker; empty in other processes."""
_forking = threading.local()


def give_forks(handlers: Mapping[signal.Signals, Any]) -> None:
    """Has processes that are forked from now on handle these signals so; if there are none, as this process does."""
    _before.clear()
    _before.update(handlers)


def _hold() -> None:
    """Has signals wait that arrive in the fork before it handles them as it should."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _before)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_fork() -> None:
    with contextlib.suppress(ValueError, OSError):  # of a thread that cannot have signals
        if _before:
            signal.set_wakeup_fd(-1)
        for number, handler in _before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _before.clear()
    _release()


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_in_fork)
