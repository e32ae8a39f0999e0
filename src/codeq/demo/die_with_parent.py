"""Run a function of codeQ in a process that ends with the one that started it, even if that one was killed.

python -m codeq.demo.die_with_parent codeq.cli.main:app serve --dev
"""

import os
import pkgutil
import signal
import sys
import threading
import time

LOOK_EVERY_S = 0.5


def main() -> None:
    _, target, *arguments = sys.argv
    tie()
    sys.argv = [target, *arguments]
    pkgutil.resolve_name(target)()


def tie() -> None:
    """From now on this process looks for its parent, and ends when that is gone. Asking works on every Unix."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
