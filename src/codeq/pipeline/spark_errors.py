"""Turns errors of Spark into errors of ours, in one line: a person who runs a command sees no stack of Java."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.folder import LakeDamaged, LakeUnavailable

_OURS = re.compile(r"^codeq\.[\w.]+\.(?P<name>\w+): (?P<text>.+)$", re.MULTILINE)
"""The last line of a stack of Python, which Spark puts into the text of its own error."""


_LOST = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Executor heartbeat timed out")
_JAVA = re.compile(r"^: (?:[\w.$]+: )?(?P<text>.+)$", re.MULTILINE)
"""The line of an error of py4j that has the message of the exception in Java."""


class ExecutorsLost(CodeqError):
    """A job failed because executors, or their Python processes, died more often than Spark tries again."""

    code = "executors-lost"


class SparkFailed(CodeqError):
    """Spark could not run a query, and the reason is no error of ours."""

    code = "spark-failed"


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raises LakeDamaged and LakeUnavailable as an executor raised them inside a query, ExecutorsLost if none lived
    to raise anything, and SparkFailed otherwise.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as fault:  # without Spark Connect a failed job raises either
        text = str(fault)
        for kind in (LakeDamaged, LakeUnavailable):
            found = next((one for one in _OURS.finditer(text) if one["name"] == kind.__name__), None)
            if found is not None:
                raise kind(found["text"]) from None
        java = _JAVA.search(text) if isinstance(fault, Py4JJavaError) else None
        line = java["text"] if java else text.strip().splitlines()[0] if text.strip() else type(fault).__name__
        if _LOST.search(text):
            raise ExecutorsLost(
                f"executors or their Python processes were killed, or had no more memory: {line}"
            ) from None
        raise SparkFailed(f"Spark failed: {line}") from fault
