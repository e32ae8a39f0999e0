"""Checks that a store refuses a second commit of the same version, before a lake is begun in it.

Delta names its commits by number, and whoever writes a number first has it. Object stores keep this with conditional
puts (`If-None-Match: *`). A store that ignores the condition lets the second writer replace the first: rows would be
lost without an error whenever two runs meet.
"""

import uuid
from functools import cache

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from pyarrow import fs

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.folder import Folder, file_at

_SCHEMA = Schema.from_arrow(pa.schema([("number", pa.int64())]))


class UnsafeStorage(CodeqError):
    """The store of the lake accepts two commits of one version."""

    code = "lake-unsafe-storage"


@cache
def check_commits(lake: Folder) -> None:
    """Commits twice to a table of its own, which it deletes. Raises UnsafeStorage if the second commit is accepted."""
    probe = lake / f"_codeq-check-{uuid.uuid4().hex}"
    DeltaTable.create(str(probe), _SCHEMA, mode="error")
    try:
        first, second = DeltaTable(str(probe)), DeltaTable(str(probe))
        _commit(first)
        try:
            _commit(second)
        except CommitFailedError:
            return
    finally:
        _delete(probe)
    raise UnsafeStorage(
        f"the store of {lake} accepts two commits of one version, because it ignores the condition If-None-Match of a "
        "put: two runs at once would lose rows. Use a store that has conditional puts"
    )


def _commit(table: DeltaTable) -> None:
    table.create_write_transaction(
        [],
        "append",
        _SCHEMA,
        commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={"codeq": "check"}),
    )


def _delete(folder: Folder) -> None:
    system, path = file_at(str(folder))
    for file in system.get_file_info(fs.FileSelector(path, recursive=True)):
        if file.is_file:
            system.delete_file(file.path)
