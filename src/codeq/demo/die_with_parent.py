"""Runs a function in a process that ends when its parent does, even if the parent was killed.

python -m codeq.demo.die_with_parent codeq.cli.main:app serve --dev
"""

import os
import pkgutil
import sys

from codeq.sdk.worker.parent_death import die_with_parent


def main() -> None:
    _, target, *arguments = sys.argv
    die_with_parent(os.getppid())
    sys.argv = [target, *arguments]
    pkgutil.resolve_name(target)()


if __name__ == "__main__":
    main()
