"""Runs several queries at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

QUERIES_AT_ONCE = 3


def in_parallel(works: Sequence[Callable[[], None]]) -> None:
    """Runs all, so that Spark plans one query while it executes another. Raises the first error when all have ended."""
    with ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result()
