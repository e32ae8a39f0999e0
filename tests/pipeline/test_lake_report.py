"""A report of a lake costs what it shows: the files of its days and the open rows are opened, and no others."""

import shutil
from datetime import date, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.opened_files import opened_files
from tests.pipeline.bronze import put
from tests.pipeline.histories import Row, churn

from codeq.pipeline.lake.data_file import CLOSED, DAYS, EVENTS, OPEN
from codeq.pipeline.lake.maintenance import maintain
from codeq.pipeline.lake.run import update_gold, update_silver
from codeq.pipeline.lake.table import DataFile, Lake, LakeTable
from codeq.pipeline.lake_report import collect_lake

pytestmark = pytest.mark.spark

HISTORY_DAYS = 5


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A history that begins shortly before midnight, and the same again on each of the next days."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    events = churn(11, 240).events
    for day in range(HISTORY_DAYS):
        put(spark, lake, _on(day, events))
        update_silver(spark, lake)
    update_gold(spark, lake)
    return lake


def _on(day: int, events: list[Row]) -> list[Row]:
    """The events as those of other tasks, so many days later."""
    return [
        {**event, "at": event["at"] + timedelta(days=day), "task_id": f"{day:08d}{event['task_id'][8:]}",
         "seq": event["seq"] + day * len(events)}
        for event in events
    ]  # fmt: skip


def paths(table: LakeTable, files: list[DataFile]) -> set[Path]:
    return {Path(table.path(file)) for file in files}


def every_file(lake: Lake) -> list[Path]:
    return sorted(path for table in lake.all for path in paths(table, table.files()))


def days_of(lake: Lake) -> list[date]:
    return sorted({date.fromisoformat((file.day or "")[:10]) for _, table in lake.gold for file in table.files()})


def test_a_report_opens_the_files_of_its_days_and_of_no_others(spark: SparkSession, lake: Lake) -> None:
    newest, open_tasks = days_of(lake)[-1], paths(lake.tasks, lake.tasks.files(part=OPEN))
    for days in (2, HISTORY_DAYS):
        shown = {str(newest - timedelta(days=number)) for number in range(days)}
        wanted = {
            path
            for _, table in lake.gold
            for path in paths(table, [file for file in table.files(part=DAYS) if (file.day or "")[:10] in shown])
        }
        with opened_files(every_file(lake)) as opened:
            data = collect_lake(spark, lake, None, days=days)
            assert opened() == wanted | open_tasks
        assert {str(moment.at.date()) for moment in data.timeline if moment.enqueued} == shown
    assert len(days_of(lake)) > HISTORY_DAYS, "no report above was of the whole history"


def test_a_report_by_the_second_opens_the_events_of_its_minutes_alone(spark: SparkSession, lake: Lake) -> None:
    """The newest day is some minutes long, and its events came with the last batch."""
    with opened_files(every_file(lake)) as opened:
        data = collect_lake(spark, lake, None, days=1)
        assert data.step_seconds < 60
        by_table = {table.folder.name: opened() & paths(table, table.files()) for table in lake.all}
    for table, part in ((lake.bronze, EVENTS), (lake.attempts, CLOSED), (lake.tasks, CLOSED)):
        newest = paths(table, table.files(part=part, after_batch=HISTORY_DAYS - 1))
        assert by_table[table.folder.name] - paths(table, table.files(part=OPEN)) == newest
        assert len(newest) < len(table.files(part=part))


def test_tasks_that_wait_longer_than_figures_are_kept_are_in_the_backlog(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    whole = collect_lake(spark, lake, None, days=365).totals
    shutil.copytree(str(lake.folder), tmp_path / "lake")
    part_of_it = Lake(tmp_path / "lake")
    assert maintain(spark, part_of_it, delete_gold_before=days_of(lake)[-1]).deleted_rows > 0
    part = collect_lake(spark, part_of_it, None, days=365).totals
    assert part.enqueued < whole.enqueued
    assert (part.live, part.running) == (whole.live, whole.running)
    assert whole.live > whole.running > 0
