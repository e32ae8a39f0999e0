"""Checks that a store refuses a second commit of the same version, before a lake is begun in it.

Delta names its commits by number, and whoever writes a number first has it. Object stores keep this with conditional
puts (`If-None-Match: *`). A store that ignores the condition lets the second writer replace the first: rows would be
lost without an error whenever two runs meet.
"""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyarrow import fs

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.folder import Folder, LakeUnavailable, file_at

WRITERS, ROUNDS, ROUNDS_MAX = 8, 3, 12
"""delta-rs looks whether the version exists before it writes it, so only writers that meet can tell. On a store that
ignores the condition, eight of them nearly always do.
"""
_SCHEMA = Schema.from_arrow(pa.schema([("number", pa.int64())]))


class UnsafeStorage(CodeqError):
    """The store of the lake accepts two commits of one version."""

    code = "lake-unsafe-storage"


@cache
def check_commits(lake: Folder) -> None:
    """Commits to a table of its own from several threads at once, and deletes the table. Raises UnsafeStorage if two
    commits of one version are accepted, and LakeUnavailable if the store fails too often to tell.
    """
    table = lake / f"_codeq-check-{uuid.uuid4().hex}"
    DeltaTable.create(str(table), _SCHEMA, mode="error")
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            accepted = _until_told(table, pool)
    finally:
        _delete(table)
    if accepted > 1:
        raise UnsafeStorage(
            f"the store of {lake} accepts two commits of one version, because it ignores the condition If-None-Match "
            "of a put: two runs at once would lose rows. Use a store with conditional puts"
        )
    if accepted < 1:
        raise LakeUnavailable(f"the store of {lake} failed so often that its commits could not be checked")


def _until_told(table: Folder, pool: ThreadPoolExecutor) -> int:
    """Returns how many commits of one version are accepted: 1, more, or 0 if that cannot be told. A commit whose answer
    was lost is tried again by delta-rs, and refused, so that a round may have none.
    """
    told = 0
    for _ in range(ROUNDS_MAX):
        accepted = _accepted(table, pool)
        if accepted > 1:
            return accepted
        told += accepted
        if told == ROUNDS:
            return 1
    return 0


def _accepted(table: Folder, pool: ThreadPoolExecutor) -> int:
    """Has all writers commit the next version at once, and returns how many of them succeed."""
    together = threading.Barrier(WRITERS)

    def commit(writer: DeltaTable) -> bool:
        together.wait()
        try:
            writer.create_write_transaction(
                [], "append", _SCHEMA, commit_properties=CommitProperties(max_commit_retries=0)
            )
        except DeltaError:  # mostly CommitFailedError; a store without conditions may also list a version twice
            return False
        return True

    return sum(pool.map(commit, [DeltaTable(str(table)) for _ in range(WRITERS)]))


def _delete(folder: Folder) -> None:
    system, path = file_at(str(folder))
    for file in system.get_file_info(fs.FileSelector(path, recursive=True)):
        if file.is_file:
            system.delete_file(file.path)
