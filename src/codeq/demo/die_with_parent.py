"""Runs a function in a process that ends when its parent does, even if the parent was killed.

python -m codeq.demo.die_with_parent codeq.cli.main:app serve --dev
"""

import os
import pkgutil
import signal
import sys
import threading
import time

CHECK_EVERY_S = 0.5


def main() -> None:
    _, target, *arguments = sys.argv
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    sys.argv = [target, *arguments]
    pkgutil.resolve_name(target)()


def _watch(parent: int) -> None:
    """Kills this process once it has another parent. Polling works on every Unix."""
    while os.getppid() == parent:
        time.sleep(CHECK_EVERY_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
