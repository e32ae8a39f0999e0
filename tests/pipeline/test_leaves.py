"""The plan of a step: every event and every open row of its task in one share, and no leaf that has no event."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codeq.pipeline.lake import leaves, parquet
from codeq.pipeline.lake.data_file import OPEN, DataFile
from codeq.pipeline.lake.folder import folder_of
from codeq.pipeline.lake.leaves import Plan, plan, row_groups
from codeq.pipeline.lake.parquet import FileTarget, write_rows

SCHEMA = pa.schema([("task_id", pa.string())])
PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "LEAF_ROWS_MAX", 10)
    monkeypatch.setattr(leaves, "LEAF_ROWS_MIN", 3)
    monkeypatch.setattr(leaves, "SHARE_ROWS_MAX", 10)
    monkeypatch.setattr(leaves, "SHARE_ROWS_MIN", 5)
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 4)


def name(number: int) -> str:
    return f"{number:06d}"


def leaf(first: int, last: int, *, is_known: bool = True) -> DataFile:
    first_id, last_id = (name(first), name(last)) if is_known else (None, None)
    path = f"b00000001-x/part=open/{first}-{last}.parquet"
    return DataFile(path, OPEN, 1, last - first + 1, 100, first_id=first_id, last_id=last_id)


def events_in(folder: Path, *files: list[int]) -> list[leaves.RowGroup]:
    paths = []
    for ids in files:
        rows = pa.table({"task_id": [name(number) for number in ids]}, SCHEMA)
        paths += [
            f"{folder}/{file.path}"
            for file in write_rows(FileTarget(folder_of(folder), "e", SCHEMA, ()), rows, rows_max=10**6)
        ]
    return row_groups(paths)


def planned(files: list[DataFile], groups: list[leaves.RowGroup], parallelism: int = 2) -> Plan:
    return plan(files, groups, parallelism=parallelism, folder="/table")


def test_work_that_is_first_in_first_out_touches_the_oldest_and_the_newest_leaf(tmp_path: Path) -> None:
    files = [leaf(start, start + 9) for start in range(0, 100, 10)]
    groups = events_in(tmp_path, [0, 1, 2, 2, 3, 95, 100, 101, 102])
    assert any(group.first_id < name(10) and group.last_id > name(90) for group in groups), "one spans all leaves"
    found = planned(files, groups)
    assert [file.first_id for file in found.removed] == [name(0), name(90)]
    assert {path for share in found.shares for path in share.open_paths} == {
        f"/table/{file.path}" for file in found.removed
    }


def test_new_tasks_touch_the_newest_leaf_only_if_both_make_one(tmp_path: Path) -> None:
    files = [leaf(0, 9), leaf(10, 15)]
    many, few = (events_in(tmp_path, list(range(16, end))) for end in (22, 20))
    assert planned(files, many).removed == []
    assert {share.open_paths for share in planned(files, many).shares} == {()}
    assert planned(files, few).removed == [files[1]]
    known = planned(files, events_in(tmp_path, [15, *range(16, 22)]))
    assert known.removed == [files[1]]
    assert sorted(path for share in known.shares for path in share.open_paths) == [f"/table/{files[1].path}"]


def test_a_small_leaf_is_rewritten_with_its_neighbour(tmp_path: Path) -> None:
    files = [leaf(0, 1), leaf(10, 15), leaf(20, 29)]
    found = planned(files, events_in(tmp_path, [0]))
    assert [file.first_id for file in found.removed] == [name(0), name(10)]
    assert len(found.shares) == 1


def test_many_new_events_are_split_among_several_shares(tmp_path: Path) -> None:
    found = planned([], events_in(tmp_path, list(range(0, 60, 2)), list(range(1, 60, 2))))
    assert len(found.shares) >= 4
    assert found.removed == []


def test_open_rows_without_known_ranges_are_read_by_every_share(tmp_path: Path) -> None:
    files = [leaf(0, 9, is_known=False), leaf(10, 19, is_known=False)]
    found = planned(files, events_in(tmp_path, [3, 17]))
    assert found.removed == files
    assert all(len(share.open_paths) == 2 for share in found.shares)


def test_without_events_nothing_is_done() -> None:
    assert planned([leaf(0, 9)], []) == Plan([], [])


ids = st.integers(0, 120)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edges=st.lists(ids, max_size=12, unique=True),
    batches=st.lists(st.lists(ids, min_size=1, max_size=30), max_size=3),
    parallelism=st.integers(1, 6),
)
def test_every_event_is_in_one_share_with_the_open_rows_of_its_task(
    tmp_path_factory: pytest.TempPathFactory, edges: list[int], batches: list[list[int]], parallelism: int
) -> None:
    edges = sorted(edges)
    files = [leaf(first, last - 1) for first, last in zip(edges[::2], edges[1::2], strict=False)]
    groups = events_in(tmp_path_factory.mktemp("events"), *batches)
    found = planned(files, groups, parallelism)
    for number in {number for batch in batches for number in batch}:
        own = [share for share in found.shares if share.ids.low <= name(number) and _is_before(number, share.ids.high)]
        assert len(own) == 1
        assert {group.path for group in groups if group.first_id <= name(number) <= group.last_id} <= set(
            own[0].event_paths
        )
    for file in files:
        reading = [share for share in found.shares if f"/table/{file.path}" in share.open_paths]
        assert bool(reading) == (file in found.removed)
        if reading:  # every row of it is in the range of one share
            for number in range(int(file.first_id or 0), int(file.last_id or 0) + 1):
                assert (
                    sum(share.ids.low <= name(number) and _is_before(number, share.ids.high) for share in reading) == 1
                )
    ends = [share.ids for share in found.shares]
    assert ends == sorted(ends, key=lambda one: one.low)


def _is_before(number: int, high: str | None) -> bool:
    return high is None or name(number) < high


@pytest.mark.slow
def test_a_spark_task_needs_no_more_memory_for_a_larger_step(tmp_path: Path) -> None:
    def peak_mib(events: int) -> int:
        command = [sys.executable, "-m", "tests.pipeline.share_memory", str(tmp_path / str(events)), str(events)]
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    small, large = peak_mib(250_000), peak_mib(1_000_000)
    assert large - small < 150, f"{small} MiB for a quarter of the events, {large} MiB for all"
