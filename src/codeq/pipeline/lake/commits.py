"""Turns errors of commits to Delta tables into errors of ours.

A commit is tried once: a retry would pass by what another run has committed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.folder import Folder, LakeUnavailable, force_to_disk, one_line

ONE_TRY = CommitProperties(max_commit_retries=0)


class LakeConflict(CodeqError):
    """Another run has committed to the table in the meantime; the files of this run are not in it."""

    code = "lake-conflict"


@contextmanager
def commit_errors(table: Folder) -> Iterator[None]:
    """Raises LakeConflict if another run has committed, and LakeUnavailable if the storage fails."""
    try:
        yield
    except CommitFailedError as fault:
        raise _conflict(table, one_line(fault)) from None
    except (DeltaError, OSError) as fault:
        raise LakeUnavailable(f"{table.name}: cannot commit: {one_line(fault)}") from None


@contextmanager
def no_other_commit(table: Folder, delta: DeltaTable) -> Iterator[None]:
    """Raises LakeConflict if another run has committed before the commit inside the block. Delta accepts a change of
    columns or properties after any rows; but what this run commits next is made from the version that it knows.
    """
    version = delta.version()
    yield
    delta.update_incremental()
    if delta.version() != version + 1:
        raise _conflict(table, f"its version is {delta.version()}, and was {version}")
    force_commit(table, version + 1)


def force_commit(table: Folder, version: int) -> None:
    """Returns once this commit survives power loss, as it does in a store anyway. Tables follow each other: if one lost
    the commit that another has taken in, rows would be counted twice, or never.
    """
    if table.is_local:
        for kind in ("json", "checkpoint.parquet"):
            path = Path(table) / "_delta_log" / f"{version:020}.{kind}"
            if path.exists():
                force_to_disk(path)


def _conflict(table: Folder, reason: str) -> LakeConflict:
    return LakeConflict(f"{table.name}: another run has committed in the meantime: {reason}")
