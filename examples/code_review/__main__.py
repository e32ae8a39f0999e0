"""Starts one process of the application, or all of them with samples.

python -m examples.code_review web
python -m examples.code_review worker
python -m examples.code_review all [codeq]
"""

import asyncio
import logging
import sys

from .run_all import run_all
from .settings import read_settings
from .web import run_web
from .worker import run_worker


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    match sys.argv[1:]:
        case ["web"]:
            asyncio.run(run_web(read_settings()))
        case ["worker"]:
            asyncio.run(run_worker(read_settings()))
        case ["all", *rest]:
            run_all(on_codeq="codeq" in rest)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
