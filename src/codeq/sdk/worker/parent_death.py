"""Ends a child process together with its parent, even if the parent was killed."""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.5


def die_with_parent(parent: int) -> None:
    """Has this process killed when `parent`, the process that started it, ends.

    On Linux the kernel does it at once, whatever this process does; it counts the end of the thread that started this
    process as the end of the parent. Elsewhere a thread looks twice a second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the parent ended before the call
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGKILL)
