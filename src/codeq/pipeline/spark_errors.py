"""Turns errors of Spark into errors of ours, in one line: a person who runs a command sees no stack of Java."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.folder import LakeDamaged, LakeUnavailable

_OURS = re.compile(r"^codeq\.[\w.]+\.(?P<name>\w+): (?P<text>.+)$", re.MULTILINE)
"""The last line of a stack of Python, which Spark puts into the text of its own error."""


class SparkFailed(CodeqError):
    """Spark could not run a query, and the reason is no error of ours."""

    code = "spark-failed"


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raises LakeDamaged and LakeUnavailable as an executor raised them inside a query, and SparkFailed otherwise."""
    try:
        yield
    except PySparkException as fault:
        text = str(fault)
        for kind in (LakeDamaged, LakeUnavailable):
            found = next((one for one in _OURS.finditer(text) if one["name"] == kind.__name__), None)
            if found is not None:
                raise kind(found["text"]) from None
        raise SparkFailed(
            f"Spark failed: {text.strip().splitlines()[0] if text.strip() else type(fault).__name__}"
        ) from fault
