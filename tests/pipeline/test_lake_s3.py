"""A lake in a bucket, on a real S3 API: the same rows as in a folder, and nothing lost when two runs meet."""

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector
from pyspark.sql import SparkSession
from tests.pipeline.table_comparison import comparable, counted, in_parallel
from tests.s3_servers import SECRET, lose_answers, start_rclone
from tests.server.server_process import Server, start_server
from typer.testing import CliRunner

import codeq
from codeq.cli.main import app
from codeq.pipeline.client import ServerOptions
from codeq.pipeline.lake import folder, gold
from codeq.pipeline.lake.commit_check import UnsafeStorage, check_commits
from codeq.pipeline.lake.folder import folder_of
from codeq.pipeline.lake.maintenance import compact, maintain
from codeq.pipeline.lake.parquet import write_stream
from codeq.pipeline.lake.partitions import run_on_executors
from codeq.pipeline.lake.run import ingest, rebuild, run_once, update_gold, update_silver
from codeq.pipeline.lake.table import CLOSED, Lake, LakeConflict, LakeUnavailable
from codeq.server.dev import ALL_SCOPES

FEW = (gold.THROUGHPUT, gold.LATENCY, gold.RETRIES)
"""Only these gold tables, because gold takes most of the time of a run."""
_numbers = count()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with tasks in every state, whose log does not change any more."""
    with start_server(tmp_path_factory.mktemp("log"), settings={"store": {"shards": 2}}) as server:
        with codeq.Client(server.base, server.token("acme", "worker", scopes=tenant_scopes())) as client:
            work(client)
        yield server


def tenant_scopes() -> list[str]:
    return [scope for scope in ALL_SCOPES if scope != "codeq:platform"]


def work(client: codeq.Client, tasks: int = 40) -> None:
    client.enqueue_many(codeq.new_tasks("mail", range(tasks)))
    dice = random.Random(7)
    for job in client.claim("mail", limit=tasks - 5, lease=3600):
        match dice.randrange(4):
            case 0:
                client.fail(job, "no")
            case 1 | 2:
                client.complete(job)


@pytest.fixture(scope="module")
def options(log: Server, tmp_path_factory: pytest.TempPathFactory) -> ServerOptions:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(log.token("platform", "admin", scopes=ALL_SCOPES))
    return ServerOptions(endpoint=log.base, token_file=str(file))


@pytest.fixture
def address(s3: str) -> str:
    return f"{s3}/tests/lake-{next(_numbers)}"


@pytest.fixture
def _few_gold_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gold, "ALL", FEW)


def rows_of(spark: SparkSession, lake: Lake) -> dict[str, Any]:
    frames = {table.folder.name: table.read(spark) for table in (lake.bronze, *lake.silver)}
    frames |= {table.folder.name: comparable(table.read(spark), of.table) for of, table in lake.gold}
    return in_parallel({name: partial(counted, frame) for name, frame in frames.items()})


@pytest.mark.usefixtures("_few_gold_tables")
def test_a_lake_in_a_bucket_has_the_rows_of_one_in_a_folder(
    spark: SparkSession, options: ServerOptions, address: str, tmp_path: Path
) -> None:
    lakes = [Lake(place) for place in (address, tmp_path / "lake")]
    for lake in lakes:
        ingest(spark, lake, options, events_max=60)
        update_silver(spark, lake)
        update_gold(spark, lake)
        run_once(spark, lake, options)
    in_bucket, in_folder = (rows_of(spark, Lake(lake.folder)) for lake in lakes)
    assert in_bucket == in_folder
    assert all(rows.total() for rows in in_folder.values())
    [kinds] = {tuple(Lake(lake.folder).tasks.read(spark).dtypes) for lake in lakes}
    assert len(kinds) > 10


@pytest.mark.usefixtures("_few_gold_tables")
def test_rebuild_compaction_and_vacuum_leave_the_same_rows(
    spark: SparkSession, options: ServerOptions, address: str
) -> None:
    for size in (40, 80, 1000):
        lake = Lake(address)
        ingest(spark, lake, options, events_max=size)
        update_silver(spark, lake)
        update_gold(spark, lake)
    before = rows_of(spark, Lake(address))
    assert len(lake.bronze.files()) > 2
    assert compact(spark, lake, files_max=1) > 2
    assert maintain(spark, Lake(address), unused_hours=0).vacuumed_files > 0
    assert len(Lake(address).bronze.files()) == 2, "one for each shard"
    assert rows_of(spark, Lake(address)) == before
    rebuild(spark, Lake(address))
    assert rows_of(spark, Lake(address)) == before
    done = maintain(spark, Lake(address), delete_before=datetime.now(UTC) + timedelta(hours=1))
    assert done.deleted_rows > 0
    assert Lake(address).bronze.files() == []


@pytest.mark.usefixtures("_few_gold_tables")
def test_of_two_runs_that_meet_one_is_refused_and_no_row_is_lost(
    spark: SparkSession, options: ServerOptions, address: str, tmp_path: Path
) -> None:
    """Both write their files, and then commit at the same moment."""
    local = Lake(tmp_path / "lake")
    run_once(spark, local, options)
    together = threading.Barrier(2)
    ends: list[str] = []

    def run(lake: Lake) -> None:
        commit = lake.bronze.commit

        def at_the_same_moment(*args: Any, **given: Any) -> None:
            together.wait(60)
            commit(*args, **given)

        lake.bronze.commit = at_the_same_moment  # type: ignore[method-assign]
        try:
            ingest(spark, lake, options)
            ends.append("committed")
        except LakeConflict:
            ends.append("refused")

    ingest(spark, Lake(address), options, events_max=20)
    runs = [threading.Thread(target=run, args=(Lake(address),)) for _ in range(2)]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    assert sorted(ends) == ["committed", "refused"]
    run_once(spark, Lake(address), options)
    assert rows_of(spark, Lake(address)) == rows_of(spark, local)


@pytest.mark.usefixtures("_few_gold_tables")
def test_runs_through_a_proxy_that_fails_end_with_every_row_once(
    spark: SparkSession, options: ServerOptions, s3_port: int, address: str, tmp_path: Path
) -> None:
    """The answer to a commit is lost, and the commit is there: delta-rs repeats it, and is refused. The proxy is
    between the driver and the store, so what fails are commits, and reads of logs and footers, which are repeated.
    """
    local = Lake(tmp_path / "lake")
    run_once(spark, local, options)
    check_commits(folder_of(address))  # it has a test of its own
    ends: list[type[Exception] | None] = []
    with lose_answers(tmp_path, s3_port, commits=4, files=3) as (environment, log), reached_by(environment):
        while not ends or ends[-1] is not None:
            ends.append(_fault_of(lambda: run_once(spark, Lake(address), options)))
        said = log.read_text()
    assert (said.count("lost"), said.count("broken")) == (4, 3)
    assert set(ends) == {LakeConflict, None}
    assert rows_of(spark, Lake(address)) == rows_of(spark, local)


def _fault_of(run: Callable[[], object]) -> type[Exception] | None:
    try:
        run()
    except (LakeConflict, LakeUnavailable) as fault:
        return type(fault)
    return None


@contextmanager
def reached_by(environment: dict[str, str]) -> Iterator[None]:
    """Reaches the store by these variables, in this process alone."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        folder._store.cache_clear()
        try:
            yield
        finally:
            folder._store.cache_clear()


def test_a_worker_that_is_killed_in_the_middle_of_a_file_leaves_nothing_in_the_table(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    table = Lake(address).tasks
    target, mark = table.target(table.new_folder(1), CLOSED), tmp_path / "killed"
    rows = pa.Table.from_pylist([{"task_id": "a"}, {"task_id": "b"}], schema=pa.schema([("task_id", pa.string())]))
    target = type(target)(target.table, target.folder, rows.schema, ("task_id",))

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows.to_batches()
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def written(_: int) -> list[str]:
        return [file.encoded() for file in write_stream(target, batches())]

    values = run_on_executors(spark, written, [0])
    assert mark.exists()
    assert json.loads(values[0])["rows"] == 2
    assert len(values) == 1


@pytest.mark.cluster
@pytest.mark.slow
def test_the_commands_take_the_address_of_a_bucket(
    spark: SparkSession, log: Server, options: ServerOptions, address: str, tmp_path: Path
) -> None:
    def command(*words: str, exit_code: int = 0) -> str:
        token = ["--url", log.base, "--token-file", str(options.token_file)]
        done = CliRunner().invoke(app, ["pipeline", *words, "--lake", address, *token], catch_exceptions=False)
        assert done.exit_code == exit_code, done.output
        assert SECRET not in done.output
        return done.output

    assert "no lake" in command("audit", exit_code=3)
    page = tmp_path / "report.html"
    assert json.loads(command("run", "--json"))["events"] > 0
    assert " ok " in command("audit")
    assert "FAIL" not in command("audit")
    command("report", "--to", str(page))
    assert SECRET not in page.read_text()
    command("rebuild")
    assert "compacted" in command("tidy")
    assert "0 dead tasks match" in command("replay", "--where", "command = 'other'", "--dry-run")
    assert Lake(address).tasks.read(spark).where("outcome = 'completed'").count() > 0


def test_a_store_that_ignores_the_condition_of_a_put_is_refused(tmp_path: Path) -> None:
    with start_rclone(tmp_path) as environment, reached_by(environment), pytest.raises(UnsafeStorage) as error:
        Lake("s3://bucket/unsafe").bronze.set_properties({"codeq.test": "new"})
    assert "conditional puts" in str(error.value)


def test_a_store_that_loses_answers_is_not_taken_for_one_that_ignores_conditions(
    s3: str, s3_port: int, address: str, tmp_path: Path
) -> None:
    """delta-rs repeats a commit whose answer was lost, and finds that the version is there."""
    check_commits.cache_clear()
    with lose_answers(tmp_path, s3_port, commits=1) as (environment, log), reached_by(environment):
        check_commits(folder_of(address))
        assert log.read_text().count("lost") == 1
    check_commits.cache_clear()


def test_the_check_of_a_store_leaves_no_file(s3: str, address: str) -> None:
    check_commits.cache_clear()
    check_commits(folder_of(address))
    system, path = folder.file_at(address)
    assert system.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)) == []


def test_a_store_that_does_not_answer_is_an_error_without_the_secret(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_RETRIES", "0")
    with pytest.raises(LakeUnavailable) as error:
        Lake("s3://bucket/nowhere")
    assert "s3://bucket/nowhere" in str(error.value)
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)
