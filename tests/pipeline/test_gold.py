"""Gold rows equal those counted in plain Python, however batches are cut and merged."""

import math
from collections import Counter
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType
from tests.pipeline.gold_sample import GOALS, GoldSample
from tests.pipeline.histories import Row, empty
from tests.pipeline.table_comparison import in_parallel

from codeq.pipeline.lake import gold
from codeq.pipeline.lake.gold import GoldBatch, GoldTable
from codeq.pipeline.lake.tables import SILVER_TASKS

pytestmark = pytest.mark.spark


def plain(at: datetime) -> datetime:
    """Returns the time as Spark does: in the time zone of the machine, without a tzinfo."""
    return at.astimezone().replace(tzinfo=None)


def rows_of(table: GoldTable, rows: list[Any]) -> dict[tuple[Any, ...], Row]:
    """Returns rows by key, without the sketches, whose bytes may differ."""
    plain_columns = [column.name for column in table.table.columns if not column.name.endswith("_sketch")]
    found = {tuple(row[key] for key in table.table.keys): {name: row[name] for name in plain_columns} for row in rows}
    assert len(found) == len(rows)
    return found


def whole_of(table: GoldTable, gold_sample: GoldSample) -> dict[tuple[Any, ...], Row]:
    return rows_of(table, gold_sample.rows[table.table.name])


@pytest.fixture(scope="module")
def grouped(spark: SparkSession, gold_sample: GoldSample) -> dict[str, tuple[StructType, list[Any]]]:
    """The rows of each table, merged from three batches in another order."""

    def merged(table: GoldTable) -> tuple[StructType, list[Any]]:
        none = empty(spark, table.table.schema)
        first, second, third = (table.partials(part) for part in gold_sample.parts)
        early = table.merged(none, first.unionByName(second), GOALS)
        rows = table.merged(table.merged(none, third, GOALS), early, GOALS)
        return rows.schema, rows.collect()

    return in_parallel({table.table.name: partial(merged, table) for table in gold.ALL})


@pytest.mark.parametrize("table", gold.ALL, ids=lambda table: str(table.table.name))
def test_any_order_and_grouping_of_merges_gives_the_same_rows(
    gold_sample: GoldSample, grouped: dict[str, tuple[StructType, list[Any]]], table: GoldTable
) -> None:
    schema, rows = grouped[table.table.name]
    assert [(field.name, field.dataType) for field in schema] == [(c.name, c.kind) for c in table.table.columns]
    assert rows_of(table, rows) == whole_of(table, gold_sample)


def test_throughput_counts_every_event_once(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.THROUGHPUT, gold_sample)
    counted = Counter(
        (e["tenant"], e["command"], e["priority"], plain(e["at"].replace(second=0, microsecond=0)), e["move"])
        for e in gold_sample.events
    )
    columns = {"enqueue": "enqueues", "claim": "claims", "complete": "completes", "fail": "fails", "nack": "nacks",
               "expire": "expiries", "abandon": "abandons", "promote": "promotes", "cancel": "cancels",
               "replay": "replays", "purge": "purges"}  # fmt: skip
    found = {(*key, move): row[column] for key, row in rows.items() for move, column in columns.items() if row[column]}
    assert found == counted
    added = [column.name for column in gold.THROUGHPUT.table.columns if column.merge]
    total = {name: sum(row[name] for row in rows.values()) for name in added}
    live = Counter(task["status"] for task in gold_sample.tasks)
    assert total["entered"] - total["left"] == live["PENDING"] + live["IN_PROGRESS"]
    assert total["began"] - total["stopped"] == live["IN_PROGRESS"]
    assert total["payload_bytes"] == sum(e["payload_bytes"] for e in gold_sample.events if e["move"] == "enqueue")
    assert total["deaths"] == sum(attempt["is_dead"] for attempt in gold_sample.attempts) > 0
    assert {row["day"].isoformat() for row in rows.values()} == {"2025-12-31", "2026-01-01"}


def test_latency_has_the_percentiles_of_each_hour_and_day(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.LATENCY, gold_sample)
    for grain, start_of in {"hour": hour_of, "day": midnight_of}.items():
        expected: dict[tuple[Any, ...], list[Row]] = {}
        for a in gold_sample.attempts:
            expected.setdefault((grain, start_of(a["ended_at"]), a["tenant"], a["command"], a["priority"]), []).append(
                a
            )
        for key, mine in expected.items():
            row = rows[key]
            waits = sorted(a["wait_ms"] for a in mine)
            assert (row["waits"], row["wait_ms"]) == (len(waits), sum(waits))
            assert row["wait_p50_ms"] == waits[math.ceil(len(waits) * 0.5) - 1]
            assert row["wait_p99_ms"] == waits[math.ceil(len(waits) * 0.99) - 1]
            assert row["runs"] == len(mine)
            assert row["run_p90_ms"] == sorted(a["run_ms"] for a in mine)[math.ceil(len(mine) * 0.9) - 1]
    done = [task for task in gold_sample.tasks if task["outcome"] in ("completed", "failed")]
    assert sum(row["ends"] for row in rows.values() if row["grain"] == "day") == len(done)
    assert sum(row["end_to_end_ms"] for row in rows.values() if row["grain"] == "hour") == sum(
        task["end_to_end_ms"] for task in done
    )


def test_sketches_of_many_values_stay_close(spark: SparkSession) -> None:
    """Merged from forty parts, each percentile is within 1.5 % of its rank."""
    numbers = spark.range(40_000).select(
        f.lit("t").alias("tenant"), f.lit("c").alias("command"), f.lit(0).alias("priority"),
        f.expr("(id * 7919) % 40000").alias("wait_ms"), f.lit(1).cast("bigint").alias("run_ms"),
        f.expr("timestamp_seconds(1767225600 + (id % 20) * 3600)").alias("ended_at"), f.lit(False).alias("is_open"),
    )  # fmt: skip
    tasks = empty(spark, SILVER_TASKS.schema)
    partials = gold.LATENCY.partials(GoldBatch(tasks, numbers, tasks))
    rows = gold.LATENCY.merged(empty(spark, gold.LATENCY.table.schema), partials).where("grain = 'day'").collect()
    assert [row.waits for row in rows] == [40_000]
    for p in (50, 90, 95, 99):
        assert abs(rows[0][f"wait_p{p}_ms"] / 40_000 - p / 100) < 0.015


def test_service_levels_judge_each_command_by_its_target(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.SERVICE_LEVELS, gold_sample).values()
    for row in rows:
        target = GOALS.targets.get(row["command"], GOALS.default)
        assert (row["target_ms"], row["objective"]) == (target.within_ms, target.objective)
        mine = [t for t in gold_sample.tasks if (t["tenant"], t["command"]) == (row["tenant"], row["command"])
                and t["ended_at"] and hour_of(t["ended_at"]) == row["hour"]]  # fmt: skip
        completed = [t for t in mine if t["outcome"] == "completed"]
        assert row["good"] == sum(t["end_to_end_ms"] <= target.within_ms for t in completed)
        assert row["late"] == len(completed) - row["good"]
        assert row["tasks"] == row["good"] + row["late"] + row["failed"]
        assert row["burn"] == pytest.approx((1 - row["good"] / row["tasks"]) / (1 - target.objective))
    deaths = sum(attempt["is_dead"] for attempt in gold_sample.attempts)
    assert sum(row["failed"] for row in rows) == deaths + sum(task["outcome"] == "failed" for task in gold_sample.tasks)
    assert sum(row["good"] for row in rows) > 0 < sum(row["late"] for row in rows)


def test_retries_tell_how_deliveries_ended_and_how_many_a_task_took(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.RETRIES, gold_sample).values()
    ends = Counter(attempt["ended_by"] for attempt in gold_sample.attempts)
    for name, move in {"completes": "complete", "fails": "fail", "nacks": "nack", "expiries": "expire",
                       "abandons": "abandon", "cancels": "cancel"}.items():  # fmt: skip
        assert sum(row[name] for row in rows) == ends[move]
    assert sum(row["deaths"] for row in rows) == sum(attempt["is_dead"] for attempt in gold_sample.attempts)
    assert sum(row["deliveries"] for row in rows) == len(gold_sample.attempts)
    took = Counter(task["deliveries"] for task in gold_sample.tasks if task["outcome"] in ("completed", "failed"))
    for number in range(1, 6):
        assert sum(row[f"took_{number}"] for row in rows) == took[number]
    assert all(
        row["retry_share"] == pytest.approx((row["nacks"] + row["expiries"] + row["abandons"]) / row["deliveries"])
        for row in rows
        if row["deliveries"]
    )


def test_dead_letters_are_gathered_by_what_they_died_of(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.DEAD_LETTERS, gold_sample)
    dead = [attempt for attempt in gold_sample.attempts if attempt["is_dead"]]
    assert sum(row["deaths"] for row in rows.values()) == len(dead)
    assert {key[2] for key in rows} >= {"cannot open <text>", "timeout after <n> s"}
    for (day, tenant, _), row in rows.items():
        mine = [
            a for a in dead if a["error"] in row["errors"] and a["tenant"] == tenant and a["ended_at"].date() == day
        ]
        assert (row["first_at"], row["last_at"]) == (min(a["ended_at"] for a in mine), max(a["ended_at"] for a in mine))
        assert row["commands"] == sorted({a["command"] for a in mine})
        assert row["task_ids"] == sorted({a["task_id"] for a in mine})[:5]


def test_usage_and_workers_add_up_to_all_that_was_run(gold_sample: GoldSample) -> None:
    usage = whole_of(gold.USAGE, gold_sample).values()
    workers = whole_of(gold.WORKERS, gold_sample).values()
    own = [attempt for attempt in gold_sample.attempts if attempt["command"] != "$webhooks"]
    ran_ms = sum(attempt["run_ms"] for attempt in own)
    assert sum(row["run_ms"] for row in usage) == ran_ms
    assert sum(row["busy_ms"] for row in workers) == sum(attempt["run_ms"] for attempt in gold_sample.attempts)
    assert sum(row["run_seconds"] for row in usage) == pytest.approx(ran_ms / 1000)
    assert sum(row["tasks"] for row in usage) == sum(task["command"] != "$webhooks" for task in gold_sample.tasks)
    assert sum(row["deliveries"] for row in usage) == len(own)
    assert sum(row["deliveries"] for row in workers) == len(gold_sample.attempts)
    assert {row["worker_id"] for row in workers} == {attempt["worker_id"] for attempt in gold_sample.attempts}
    bad = Counter(a["worker_id"] for a in gold_sample.attempts if a["ended_by"] in ("fail", "nack", "expire"))
    for worker, number in bad.items():
        assert sum(r["failures"] + r["expiries"] for r in workers if r["worker_id"] == worker) == number


def test_usage_tells_callbacks_and_files_from_tasks(gold_sample: GoldSample) -> None:
    for (day, tenant), row in whole_of(gold.USAGE, gold_sample).items():
        mine = [e for e in gold_sample.events if e["tenant"] == tenant and e["at"].date() == day]
        ended = [e for e in mine if e["move"] in ("complete", "fail")]
        sent = [e for e in mine if e["command"] == "$webhooks"]
        assert row["webhooks"] == sum(e["move"] == "enqueue" for e in sent) > 0
        assert row["webhook_attempts"] == sum(e["move"] == "complete" for e in sent) > 0
        assert row["artifacts"] == sum(e["artifacts"] for e in ended) > 0
        assert row["artifact_bytes"] == sum(e["artifact_bytes"] for e in ended) > 0


def test_capacity_is_planned_from_arrivals_and_runs(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.CAPACITY, gold_sample).values()
    own = [e for e in gold_sample.events if e["command"] != "$webhooks"]
    arrivals = [e for e in own if e["status_after"] == "PENDING" and e["move"] != "promote"]
    assert sum(row["arrivals"] for row in rows) == len(arrivals)
    for row in rows:
        mine = [a for a in gold_sample.attempts if (a["tenant"], a["command"]) == (row["tenant"], row["command"])
                and hour_of(a["ended_at"]) == row["hour"]]  # fmt: skip
        assert (row["deliveries"], row["run_ms"]) == (len(mine), sum(a["run_ms"] for a in mine))
        assert row["workers"] == len({a["worker_id"] for a in mine})
        load = row["arrivals"] / row["seconds"] * row["service_ms"] / 1000
        assert row["load"] == pytest.approx(load)
        assert row["workers_needed"] == by_the_book(row["load"], row["service_ms"], GOALS.wait_ms)
        assert row["utilisation"] == pytest.approx(row["run_ms"] / 1000 / row["seconds"] / row["workers"])


def test_sums_that_tables_share_are_kept_until_the_block_ends(spark: SparkSession, gold_sample: GoldSample) -> None:
    batch = replace(gold_sample.whole)
    partials = gold.USAGE.partials(batch)
    shared = (batch.move_sums, batch.delivery_sums)

    def fail_at_the_end() -> None:
        with batch.cached():
            assert all(sums.storageLevel.useMemory for sums in shared)
            merged = gold.USAGE.merged(empty(spark, gold.USAGE.table.schema), partials, GOALS)
            assert rows_of(gold.USAGE, merged.collect()) == whole_of(gold.USAGE, gold_sample)
            raise KeyError

    with pytest.raises(KeyError):
        fail_at_the_end()
    assert not any(sums.storageLevel.useMemory for sums in shared)
    assert not batch.task_sums.storageLevel.useMemory  # no table used them


def test_workers_needed_are_those_of_the_formula(spark: SparkSession) -> None:
    cases = [(load, service) for load in (0.01, 0.7, 1.0, 3.5, 12.0, 140.0) for service in (5.0, 900.0, 60_000.0)]
    rows = spark.createDataFrame(cases, "load double, service_ms double")
    found = rows.select(
        *(gold.workers_needed("load", "service_ms", wait).alias(str(wait)) for wait in (1, 1000))
    ).collect()
    assert [tuple(row) for row in found] == [tuple(by_the_book(*case, wait) for wait in (1, 1000)) for case in cases]


def by_the_book(load: float, service_ms: float, wait_ms: int) -> int:
    """The textbook formula of Erlang C, with logarithms of factorials so that many servers do not overflow."""
    servers = math.floor(load) + 1
    while True:
        terms = [math.exp(k * math.log(load) - math.lgamma(k + 1)) for k in range(servers)]
        last = math.exp(servers * math.log(load) - math.lgamma(servers + 1)) * servers / (servers - load)
        if last / (sum(terms) + last) * service_ms / (servers - load) <= wait_ms:
            return servers
        servers += 1


def test_errors_of_one_kind_have_one_signature(spark: SparkSession) -> None:
    alike = {
        "timeout after <n> s": ["timeout after 30 s", "timeout after 1.5 s", "  timeout   after 7 s \n  at line 3"],
        "no user <text>": ['no user "ada"', "no user 'bob the 2nd'", "no user `x`"],
        "cannot open <path>: denied": ["cannot open /srv/in/47.png: denied", r"cannot open C:\temp\a.txt: denied"],
        "task <uuid> is gone": ["task 019b76d1-8055-7002-8708-206ee7830000 is gone"],
        "at <hex> in <hex>": ["at 0x7ffe12 in deadbeef01", "at 0X1f in 00ffaa99"],
        "GET <url> gave <n>": ["GET https://example.org/a?b=1 gave 503", "GET http://10.0.0.1:80 gave 404"],
        "can't reach <mail>": ["can't reach ada@example.org"],
        "LEASE_EXPIRED": ["LEASE_EXPIRED"],
        "utf8 decode failed in md5": ["utf8 decode failed in md5"],
        "unknown": ["", "   "],
    }
    errors = [(error, wanted) for wanted, errors in alike.items() for error in errors]
    rows = spark.createDataFrame(errors, "error string, wanted string")
    assert [
        (row.error, row.found) for row in rows.select("error", gold.signature(f.col("error")).alias("found")).collect()
    ] == errors


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def midnight_of(at: datetime) -> datetime:
    return hour_of(at).replace(hour=0)
