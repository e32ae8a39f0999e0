"""What a person sees when a lake or its storage fails: one line that says what, and a run that goes on if it passes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.event_log import enqueue
from tests.server.server_process import Tenant
from typer.testing import CliRunner

from codeq.cli import pipeline
from codeq.cli.main import app
from codeq.errors import QuotaExceeded, StoreBusy, Unavailable, Unreachable
from codeq.pipeline.lake import gold
from codeq.pipeline.lake.partitions import run_on_executors
from codeq.pipeline.lake.table import OPEN, Lake, LakeConflict, LakeDamaged, LakeUnavailable
from codeq.pipeline.spark_errors import ExecutorsLost, SparkFailed, spark_errors


class Ended(Exception):
    """What ends a run in a test."""


def test_a_run_with_an_interval_goes_on_after_faults_that_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passing = [
        Unreachable("nobody answers"),
        Unavailable("it starts"),
        StoreBusy("the disk is slow"),
        QuotaExceeded("too many calls"),
        LakeConflict("another was faster"),
        LakeUnavailable("the disk is full"),
        ExecutorsLost("they were killed"),
    ]
    coming: Iterator[Exception] = iter([*passing, Ended()])

    def update(_: Lake) -> None:
        raise next(coming)

    with pytest.raises(Ended):
        pipeline._repeat(update, lambda _: None, str(tmp_path / "lake"), 0)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"codeq: {fault}; trying again in 0 s" for fault in passing]
    damaged = iter([LakeDamaged("a file is missing")])

    def find_damage(_: Lake) -> None:
        raise next(damaged)

    with pytest.raises(LakeDamaged):
        pipeline._repeat(find_damage, lambda _: None, str(tmp_path / "lake"), 0)


def test_an_error_of_ours_inside_a_query_is_raised_as_it_was_and_others_in_one_line(spark: SparkSession) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise LakeUnavailable("the storage of the lake failed: it is full")
        yield from ()

    with pytest.raises(LakeUnavailable, match=r"failed: it is full$"), spark_errors():
        spark.range(1).mapInArrow(fail, "id long").collect()
    with pytest.raises(SparkFailed, match="nowhere") as error, spark_errors():
        spark.sql("select * from nowhere").collect()
    assert "\n" not in str(error.value)


def test_python_processes_that_are_killed_at_every_try_are_an_error_in_one_line(spark: SparkSession) -> None:
    def die(_: int) -> list[str]:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415

        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out
        return []

    with pytest.raises(ExecutorsLost, match="Python worker exited unexpectedly") as error, spark_errors():
        run_on_executors(spark, die, [1])
    assert "\n" not in str(error.value)


def test_a_file_that_is_damaged_or_missing_ends_a_command_in_one_line_that_names_it(
    spark: SparkSession, tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold, "ALL", ())
    (tmp_path / "token").write_text(tenant.admin.token)
    lake = tmp_path / "lake"

    def command(name: str, *more: str) -> Any:
        server = ["--url", tenant.server.base, "--token-file", str(tmp_path / "token")]
        return CliRunner().invoke(app, ["pipeline", name, "--lake", str(lake), *server, *more])

    def fails(name: str, file: Path) -> None:
        done = command(name)
        assert done.exit_code == 1, done.output
        assert isinstance(done.exception, SystemExit), done.exception
        assert done.output.startswith("codeq: ")
        assert file.name in done.output
        assert len(done.output.splitlines()) == 1

    enqueue(tenant, 5)
    assert command("run").exit_code == 0
    tables = Lake(lake)
    leaf = Path(tables.tasks.path(tables.tasks.files(part=OPEN)[0]))
    events = Path(tables.bronze.path(tables.bronze.files()[0]))
    enqueue(tenant, 5)
    known = leaf.read_bytes()
    leaf.write_bytes(known[: len(known) // 2])
    fails("run", leaf)
    assert command("rebuild").exit_code == 0, "from bronze"
    assert Lake(lake).tasks.read(spark).count() == 10
    assert command("audit").exit_code == 0
    events.unlink()
    fails("rebuild", events)
    fails("audit", events)
