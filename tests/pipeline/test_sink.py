"""The sink enqueues every row once, with every column and type of payload, and reports every rejected row."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.event_log import OptionsFor
from tests.server.server_process import Tenant, answered, eventually

from codeq.pipeline import last_write_summary
from codeq.pipeline.connector import rejects
from codeq.pipeline.connector.task_rows import Rejected
from codeq.pipeline.connector.write_summary import WriteSummary
from codeq.wire import paths


def write(frame: DataFrame, options: dict[str, str]) -> WriteSummary:
    frame.write.format("codeq").options(**options).mode("append").save()
    return last_write_summary()


def tasks(tenant: Tenant, **query: Any) -> list[dict[str, Any]]:
    """All tasks of the tenant, oldest first."""
    found: list[dict[str, Any]] = []
    while True:
        page = answered(tenant.admin.get(paths.TASKS, limit=1000, **query), 200)
        found += page["tasks"]
        if "cursor" not in page:
            return sorted(found, key=lambda task: task["id"])
        query["cursor"] = page["cursor"]


def counts(summary: WriteSummary) -> tuple[int, int, int]:
    return summary.enqueued, summary.deduplicated, summary.rejected


def test_every_column_reaches_its_task(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    frame = spark.sql(
        """select 'mail' command, '{"to": "a"}' payload, 7 priority, 90.5D delay_seconds,
                  cast(null as timestamp) run_at, 'k1' idempotency_key, 3 max_attempts,
                  'https://example.com/hook' webhook
           union all
           select 'post', '[1]', null, null, timestamp '2027-01-02 03:04:05.678 UTC', null, null, null"""
    )
    options = options_for(tenant.producer)
    assert counts(write(frame, options)) == (2, 0, 0)
    [mail, post] = sorted(tasks(tenant), key=lambda task: task["command"])
    assert (mail["command"], json.loads(mail["payload"]), mail["priority"]) == ("mail", {"to": "a"}, 7)
    assert (mail["maxAttempts"], mail["idempotencyKey"], mail["webhook"]) == (3, "k1", "https://example.com/hook")
    visible = datetime.fromisoformat(mail["visibleAt"]) - datetime.fromisoformat(mail["createdAt"])
    assert visible.total_seconds() == 90.5
    assert (post["visibleAt"], post["priority"], post["maxAttempts"]) == ("2027-01-02T03:04:05.678Z", 0, 5)
    assert counts(write(frame, options)) == (1, 1, 0)  # the row with its own key is a duplicate


@pytest.mark.parametrize(
    ("column", "payload"),
    [
        ("named_struct('n', 1, 'at', timestamp '2026-01-02 03:04:05 UTC', 'no', cast(null as int))",
         {"n": 1, "at": "2026-01-02T03:04:05Z", "no": None}),
        ("map('a', 1.5D, 'b', 2D)", {"a": 1.5, "b": 2.0}),
        ("named_struct('inner', map('x', array(1, 2)))", {"inner": {"x": [1, 2]}}),
        ("array('ü', 'z')", ["ü", "z"]),
        ("42L", 42),
        ("cast('{\"raw\": true}' as binary)", {"raw": True}),
        ("cast(1.25 as decimal(5,2))", "1.25"),
    ],
)  # fmt: skip
def test_a_payload_of_any_kind_becomes_json(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor, column: str, payload: object
) -> None:
    write(spark.sql(f"select {column} payload"), options_for(tenant.producer, command="any"))
    [task] = tasks(tenant)
    assert json.loads(task["payload"]) == payload


def test_a_spark_task_that_is_retried_enqueues_nothing_twice(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor
) -> None:
    """The first attempt sends rows, waits until they are in the queue, and dies."""
    base, token, path = tenant.server.base, tenant.admin.token, paths.QUEUES

    def fail_once(batches: Any) -> Any:
        import time  # noqa: PLC0415
        import urllib.request  # noqa: PLC0415

        from pyspark import TaskContext  # noqa: PLC0415

        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            request = urllib.request.Request(f"{base}{path}", headers={"Authorization": f"Bearer {token}"})
            for _ in range(300):
                with urllib.request.urlopen(request) as answer:
                    if b'"ready":' in answer.read():
                        break
                time.sleep(0.05)
            raise RuntimeError("this try ends here")

    rows = spark.range(0, 6000, 1, 1).selectExpr("id", "repeat('x', 200) as filler")
    doomed = rows.mapInArrow(fail_once, rows.schema).selectExpr("struct(id, filler) as payload")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        summary = write(doomed, options_for(tenant.producer, command="once", batchSize="500"))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    made = tasks(tenant)
    assert sorted(json.loads(task["payload"])["id"] for task in made) == list(range(6000))
    assert summary.deduplicated > 0
    assert summary.enqueued + summary.deduplicated == 6000


def test_a_job_that_is_started_again_enqueues_only_what_is_missing(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor, tmp_path: Path
) -> None:
    half_done = tmp_path / "half-done"

    def half_done_after(number: int) -> None:
        eventually(lambda: len(tasks(tenant)) >= number, 60)
        half_done.touch()

    def killed_half_way(batches: Any) -> Any:
        import time  # noqa: PLC0415

        for batch in batches:
            if 35 in batch["payload"].to_pylist():
                until_s = time.monotonic() + 60
                while not half_done.exists() and time.monotonic() < until_s:
                    time.sleep(0.01)
                raise ValueError("killed")
            yield batch

    options = options_for(tenant.producer, command="ship", batchSize="10", jobId="nightly-2026-11-18")
    rows = spark.range(0, 40, 1, 2).selectExpr("id as payload")
    broken = rows.mapInArrow(killed_half_way, "payload long")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 5)
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(half_done_after, 20)
            with pytest.raises(PySparkException, match="killed"):
                write(broken, options)
        done = write(rows, options)
        assert counts(write(rows, options)) == (0, 40, 0)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert done.enqueued + done.deduplicated == 40
    assert done.deduplicated >= 20, "of the first attempt"
    assert done.job == "nightly-2026-11-18"
    assert sorted(json.loads(task["payload"]) for task in tasks(tenant)) == list(range(40))
    assert counts(write(rows, {**options, "jobId": "nightly-2026-11-19"})) == (40, 0, 0)
    with pytest.raises(PySparkException, match="option jobId must be"):
        write(rows, {**options, "jobId": "a/b"})


def test_rows_that_change_between_tries_are_noticed(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor
) -> None:
    """The queue would otherwise drop rows as duplicates of other rows."""

    def other_rows_each_time(batches: Any) -> Any:
        import pyarrow as pa  # noqa: PLC0415
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        for batch in batches:
            yield pa.record_batch([pa.array([f'"{attempt}-{n}"' for n in range(batch.num_rows)])], ["payload"])
            yield pa.record_batch([pa.array(["not JSON"] if attempt == 0 else ["1"])], ["payload"])

    frame = spark.range(0, 3, 1, 1).mapInArrow(other_rows_each_time, "payload string")
    with pytest.raises(PySparkException, match="was another one in an earlier attempt"):
        write(frame, options_for(tenant.producer, command="odd", batchSize="1"))


def test_a_batch_of_a_stream_that_is_replayed_enqueues_nothing_twice(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor, tmp_path: Path
) -> None:
    landing, checkpoint, report = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "summary.jsonl"
    spark.range(0, 40, 1, 2).selectExpr("struct(id) as payload").write.json(str(landing))

    def run() -> WriteSummary:
        frame = spark.readStream.schema("payload struct<id: long>").json(str(landing))
        options = options_for(tenant.producer, command="streamed", summaryPath=str(report))
        writer = frame.writeStream.format("codeq").options(**options).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return last_write_summary(report)

    assert counts(run()) == (40, 0, 0)
    for kept in (checkpoint / "commits").iterdir():
        kept.unlink()  # as if the driver had died before it recorded the batch as done
    assert counts(run()) == (0, 40, 0)
    assert len(tasks(tenant)) == 40
    assert [json.loads(line)["batch"] for line in report.read_text().splitlines()] == [0, 0]


BAD = """select * from values ('"good"', 1), ('not JSON', 1), ('"high"', 99), (null, 1), ('"also good"', 0)
         as t(payload, priority)"""


def test_rejected_rows_stop_the_write_by_default(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    with pytest.raises(PySparkException, match="mode is FAILFAST"):
        write(spark.sql(BAD), options_for(tenant.producer, command="c"))


def test_rejected_rows_can_be_dropped(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    summary = write(spark.sql(BAD), options_for(tenant.producer, command="c", mode="DROPMALFORMED"))
    assert counts(summary) == (2, 0, 3)
    assert {json.loads(task["payload"]) for task in tasks(tenant)} == {"good", "also good"}


def test_rejected_rows_are_kept_with_the_reason(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor, tmp_path: Path
) -> None:
    side = tmp_path / "rejected"
    options = options_for(tenant.producer, command="c", mode="PERMISSIVE", rejectedPath=str(side))
    summary = write(spark.sql(BAD).repartition(1), options)
    assert (counts(summary), summary.reasons) == ((2, 0, 3), {"invalid": 3})
    kept = {json.loads(row.content)["payload"]: row for row in spark.read.parquet(str(side)).collect()}
    assert set(kept) == {"not JSON", '"high"', None}
    assert "not JSON that can be kept" in kept["not JSON"].reason
    assert "priority must be a whole number from 0 to 9, not 99" in kept['"high"'].reason
    assert kept[None].reason == "payload is null"
    assert not list((side / "_staged").iterdir())


def test_a_write_that_fails_leaves_no_rejected_rows(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor, tmp_path: Path
) -> None:
    """One Spark task rejects a row and succeeds; then the other fails."""
    side = str(tmp_path / "rejected")

    def one_is_bad_and_one_fails(batches: Any) -> Any:
        import time  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        for batch in batches:
            for number in batch["id"].to_pylist():
                if number == 0:
                    yield pa.record_batch([["not JSON"]], ["payload"])
                    continue
                for _ in range(400):
                    if any(path.stat().st_size for path in Path(side).rglob("*.parquet")):
                        break
                    time.sleep(0.05)
                raise RuntimeError("late")

    frame = spark.range(0, 2, 1, 2).mapInArrow(one_is_bad_and_one_fails, "payload string")
    with pytest.raises(PySparkException, match="late"):
        write(frame, options_for(tenant.producer, command="c", mode="PERMISSIVE", rejectedPath=side))
    assert (tmp_path / "rejected").exists()
    assert not [path for path in Path(side).rglob("*") if path.is_file()]


def test_a_spark_task_that_fails_deletes_its_rejected_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejects, "ROWS_AT_ONCE", 2)
    kept = rejects.Rejects(str(tmp_path), "job", 0, 1)
    for row in range(3):
        kept.add(Rejected(row, "invalid", "because"), {"payload": "x"})
    assert list(tmp_path.rglob("*.parquet"))
    kept.drop()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select 1 n", "put them into payload"),
        ("select 'c' command", "needs a column payload"),
        ("select '1' payload", "a task needs a command"),
        ("select '1' payload, 'c' command, 'high' priority", "column priority is string"),
        ("select '1' payload, 'c' command, 1 run_at", "column run_at is int"),
    ],
)
def test_a_frame_whose_rows_are_no_tasks_is_refused(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor, query: str, message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(spark.sql(query), options_for(tenant.producer))


def test_a_queue_is_never_overwritten(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    frame = spark.sql("select '1' payload")
    with pytest.raises(PySparkException, match="never replaced"):
        frame.write.format("codeq").options(**options_for(tenant.producer, command="c")).mode("overwrite").save()


def test_a_row_without_a_command_is_rejected_unless_there_is_one_for_all(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor
) -> None:
    frame = spark.sql("select * from values ('a', '1'), (null, '2') as t(command, payload)")
    dropped = write(frame, options_for(tenant.producer, mode="DROPMALFORMED"))
    assert counts(dropped) == (1, 0, 1)
    assert counts(write(frame, options_for(tenant.producer, command="b"))) == (2, 0, 0)
    assert sorted(task["command"] for task in tasks(tenant)) == ["a", "a", "b"]


def test_many_rows_go_in_many_calls_in_parallel(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    frame = spark.range(0, 5000, 1, 2).selectExpr("struct(id) as payload")
    assert counts(write(frame, options_for(tenant.producer, command="many", inFlight="3"))) == (5000, 0, 0)
    assert answered(tenant.admin.get(f"{paths.ADMIN_QUEUES}/many"), 200)["ready"] == 5000


def test_a_stream_whose_rows_are_no_tasks_is_refused(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor, tmp_path: Path
) -> None:
    frame = spark.readStream.format("rate").load().selectExpr("value n")
    options = options_for(tenant.producer, command="c", checkpointLocation=str(tmp_path / "checkpoint"))
    with pytest.raises((PySparkException, StreamingQueryException), match="put them into payload"):
        frame.writeStream.format("codeq").options(**options).start().awaitTermination(30)
