"""The rules of the audit, as conditions over four views of the log.

`task_steps` joins every event with the event before it of the same task; `shard_sequence`, with the number before it in
its shard; `ready_periods` has one row per period in which a task was ready in its queue; `last_states` joins the last
event of each task with the store's own listing. A rule names its view, the rows it applies to, and what breaks it.

A log may have been trimmed. Rules that compare with an earlier event skip the first event of a trimmed log, so no rule
is broken by a correct log, whole or trimmed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from codeq.pipeline.audit.columns import SPARK, Columns

LEGAL: Mapping[str, frozenset[tuple[str | None, str]]] = {
    "enqueue": frozenset({(None, "PENDING")}),
    "promote": frozenset({("PENDING", "PENDING")}),
    "claim": frozenset({("PENDING", "IN_PROGRESS")}),
    "cancel": frozenset({("PENDING", "CANCELLED"), ("IN_PROGRESS", "CANCELLED")}),
    "complete": frozenset({("IN_PROGRESS", "COMPLETED")}),
    "fail": frozenset({("IN_PROGRESS", "FAILED")}),
    "nack": frozenset({("IN_PROGRESS", "PENDING"), ("IN_PROGRESS", "FAILED")}),
    "expire": frozenset({("IN_PROGRESS", "PENDING"), ("IN_PROGRESS", "FAILED")}),
    "abandon": frozenset({("IN_PROGRESS", "PENDING"), ("IN_PROGRESS", "FAILED")}),
    "replay": frozenset({("FAILED", "PENDING")}),
    "purge": frozenset({("COMPLETED", "COMPLETED"), ("FAILED", "FAILED"), ("CANCELLED", "CANCELLED")}),
}
"""The statuses before and after each move, as drawn in `domain/lifecycle.py`."""


BUCKET_EVENTS = 1_000_000
"""Events of a shard that one Spark task sorts by number."""


class LogView(StrEnum):
    TASK_STEPS = "task_steps"
    SHARD_SEQUENCE = "shard_sequence"
    READY_PERIODS = "ready_periods"
    LAST_STATES = "last_states"


Expression = Callable[[Columns], Any]
"""Computes a column from the columns of a view."""


@dataclass(frozen=True)
class Rule:
    name: str
    text: str
    view: LogView
    applies: Expression
    """Whether a row is checked."""
    broken: Expression
    """Whether a row breaks the rule."""
    detail: Expression
    """Describes what is wrong with the row."""

    def violations(self) -> Column:
        return f.count_if(self.applies(SPARK) & f.coalesce(self.broken(SPARK), f.lit(False)))

    def checked(self) -> Column:
        return f.count_if(self.applies(SPARK))

    def offending(self, rows: DataFrame) -> DataFrame:
        """Returns the rows that break the rule: rule, tenant, task_id, shard, seq, detail."""
        return rows.where(self.applies(SPARK) & self.broken(SPARK)).select(
            f.lit(self.name).alias("rule"), "tenant", "task_id", "shard", "seq", self.detail(SPARK).alias("detail")
        )


_LEGAL = [f"{move}/{before or ''}/{after}" for move, statuses in LEGAL.items() for before, after in statuses]


def _is_illegal(e: Columns) -> Any:
    is_known = e.text(e.move, "/", e.status_before, "/", e.status_after).isin(_LEGAL)
    starts_late = e.is_first & e.is_whole & (e.move != "enqueue")
    starts_elsewhere = e.either(e.status_before, "") != e.either(e.status_after_before, "")
    goes_on = (e.move == "enqueue") | (e.move_before == "purge") | starts_elsewhere
    replays_no_dead = (e.move == "replay") & ~e.move_before.isin(["nack", "expire", "abandon"])
    return ~is_known | starts_late | (~e.is_first & (goes_on | replays_no_dead))


def _is_miscounted(e: Columns) -> Any:
    starts_anew, counts = e.move.isin(["enqueue", "replay"]), e.move.isin(["nack", "expire"])
    attempts = e.if_else(counts, e.attempts_before + 1, e.attempts_before)
    deliveries = e.if_else(e.move == "claim", e.deliveries_before + 1, e.deliveries_before)
    return (e.attempts != e.if_else(starts_anew, 0, attempts)) | (e.deliveries != e.if_else(starts_anew, 0, deliveries))


def _due(e: Columns) -> Any:
    """When a delayed task is due. The delay of a task that was just promoted is in the event before that."""
    return e.if_else(e.move_before == "promote", e.visible_at_second_before, e.visible_at_before)


RULES = (
    Rule(
        "accounted",
        "Every acknowledged task has ended, or has the status in the store that its last event has.",
        LogView.LAST_STATES,
        lambda e: e.is_settled,
        lambda e: (
            (e.is_null(e.move) & e.is_whole)
            | ((e.move == "purge") != e.is_null(e.listed))
            | (e.listed != e.status_after)
        ),
        lambda e: e.if_else(
            e.is_null(e.move),
            e.text("listed, and there is no event for it"),
            e.if_else(
                e.move == "purge",
                e.text("purged, and still listed"),
                e.if_else(
                    e.is_null(e.listed),
                    e.text("lost: its last event is ", e.move, ", and the store does not know it"),
                    e.text("listed as ", e.listed, ", and ", e.status_after, " by its events"),
                ),
            ),
        ),
    ),
    Rule(
        "one_result",
        "A result of a task is accepted at most once, and once more after each replay.",
        LogView.TASK_STEPS,
        lambda e: e.move.isin(["complete", "fail"]),
        lambda e: e.last_result > e.either(e.last_replay, 0),
        lambda e: e.text(e.move, " although event ", e.last_result, " was a result already"),
    ),
    Rule(
        "lease_tokens",
        "Every claim has a higher lease token than any before, and no other move changes it.",
        LogView.TASK_STEPS,
        lambda e: ~e.is_first,
        lambda e: e.if_else(
            e.move == "claim", e.lease_token <= e.highest_token, e.lease_token != e.lease_token_before
        ),
        lambda e: e.text(e.move, " under token ", e.lease_token, " after token ", e.lease_token_before),
    ),
    Rule(
        "one_lease",
        "A task is not delivered while the delivery before has not ended.",
        LogView.TASK_STEPS,
        lambda e: e.move == "claim",
        lambda e: e.status_after_before == "IN_PROGRESS",
        lambda e: e.text("claimed by ", e.worker_id, " while held by ", e.either(e.worker_id_before, "another")),
    ),
    Rule(
        "fifo",
        "Within one tenant, command, priority and shard, tasks are delivered in the order in which they became ready.",
        LogView.READY_PERIODS,
        lambda e: e.always(),
        lambda e: e.passed_by > e.seq,
        lambda e: e.text(
            "ready since event ", e.seq, ", but one that was ready later, at event ", e.passed_by,
            ", was claimed before it",
        ),
    ),
    Rule(
        "not_early",
        "Nothing is delivered before its visible time.",
        LogView.TASK_STEPS,
        lambda e: e.move.isin(["claim", "promote"]),
        lambda e: e.at < _due(e),
        lambda e: e.text(e.move, " at ", e.at, ", but not visible before ", _due(e)),
    ),
    Rule(
        "attempts_limit",
        "A task that may still be delivered has attempts left, and none has more attempts than its limit.",
        LogView.TASK_STEPS,
        lambda e: e.always(),
        lambda e: (
            (e.attempts > e.max_attempts)
            | (e.status_after.isin(["PENDING", "IN_PROGRESS"]) & (e.attempts >= e.max_attempts))
        ),
        lambda e: e.text(e.attempts, " of ", e.max_attempts, " attempts and ", e.status_after),
    ),
    Rule(
        "attempts_count",
        "A nack and an expiry count one attempt, a claim one delivery, enqueue and replay start both from none.",
        LogView.TASK_STEPS,
        lambda e: ~e.is_first | (e.move == "enqueue"),
        _is_miscounted,
        lambda e: e.text(
            e.move, ": attempts ", e.either(e.attempts_before, 0), " to ", e.attempts, ", deliveries ",
            e.either(e.deliveries_before, 0), " to ", e.deliveries,
        ),
    ),
    Rule(
        "transitions",
        "Every move starts where the one before it ended, and is one of those that a task can make.",
        LogView.TASK_STEPS,
        lambda e: e.always(),
        _is_illegal,
        lambda e: e.text(
            e.move, " from ", e.either(e.status_before, "nothing"), " to ", e.status_after, " after ",
            e.either(e.move_before, "nothing"),
        ),
    ),
    Rule(
        "gapless",
        "The events of a shard are numbered without gaps and without repeats.",
        LogView.SHARD_SEQUENCE,
        lambda e: e.always(),
        lambda e: e.seq != e.seq_before + 1,
        lambda e: e.if_else(
            e.seq == e.seq_before,
            e.text("event ", e.seq, " is there twice"),
            e.text("events ", e.seq_before + 1, " to ", e.seq - 1, " are missing"),
        ),
    ),
)  # fmt: skip


# -- views -------------------------------------------------------------------------------------------------------------

_NEVER = 1 << 61
"""Above the number of every event."""
_PREVIOUS = ("move", "status_after", "lease_token", "worker_id", "visible_at", "attempts", "deliveries", "seq")


def task_steps(events: DataFrame) -> DataFrame:
    """Joins every event with the event before it of the same task. Takes one shuffle and one sort."""
    by_task = Window.partitionBy("bucket", "task_id").orderBy("seq")
    earlier = by_task.rowsBetween(Window.unboundedPreceding, -1)
    # Ids have long common prefixes, so sorting by a hash of them first is faster.
    rows = events.withColumn("bucket", f.xxhash64("task_id"))
    rows = rows.select(
        "*",
        *(f.lag(name).over(by_task).alias(f"{name}_before") for name in _PREVIOUS),
        f.lag("visible_at", 2).over(by_task).alias("visible_at_second_before"),
        f.max("lease_token").over(earlier).alias("highest_token"),
        f.max(f.expr("if(move = 'replay', seq, null)")).over(earlier).alias("last_replay"),
        f.max(f.expr("if(move in ('complete', 'fail'), seq, null)")).over(earlier).alias("last_result"),
    )
    return rows.withColumn("is_first", f.col("seq_before").isNull()).join(_untrimmed(events), "shard")


def shard_sequence(events: DataFrame) -> DataFrame:
    """Joins every event with the number before its own in the shard. A Spark task sorts BUCKET_EVENTS of them; the
    first of these is compared with the last of those before, of which there are few.
    """
    bucket = f.floor(f.col("seq") / BUCKET_EVENTS).alias("bucket")
    rows = events.select("shard", "seq", "tenant", "task_id", bucket)
    ends = rows.groupBy("shard", "bucket").agg(f.max("seq").alias("last"))
    earlier = f.lag("last").over(Window.partitionBy("shard").orderBy("bucket"))
    rows = rows.join(f.broadcast(ends.select("shard", "bucket", earlier.alias("earlier"))), ["shard", "bucket"])
    before = f.lag("seq").over(Window.partitionBy("shard", "bucket").orderBy("seq"))
    return rows.select("shard", "seq", "tenant", "task_id", f.coalesce(before, "earlier").alias("seq_before"))


def ready_periods(events: DataFrame) -> DataFrame:
    """Returns each period in which a task was ready, and the latest entry that was claimed before the period ended.

    The number of the event that made a task ready is its position in the queue: numbers follow the order of commits in
    the shard, and a claim takes the lowest. Let a task enter at E and leave at L, by a claim, a cancel, or not at all.
    It was overtaken if and only if a claim before L took a task that entered after E: that claim came after that entry,
    so between E and L. Therefore it is enough to compare with the highest entry claimed so far, in the order of
    leaving. Pauses, limits on consumers and batches change when a claim happens and not what it must take, so the check
    is exact. Periods whose first event was trimmed are not part of the check.
    """
    by_task = Window.partitionBy("task_id").orderBy("seq")
    periods = events.select(
        "tenant", "command", "priority", "shard", "task_id", "seq",
        f.expr("status_after = 'PENDING' and visible_at is null").alias("is_entry"),
        f.lead("seq").over(by_task).alias("left"),
        f.lead("move").over(by_task).alias("left_by"),
    ).where("is_entry")  # fmt: skip
    # Tasks that have not left come after all others, in any order: none of them was claimed.
    periods = periods.withColumn("bucket", f.expr(f"coalesce(left, {_NEVER} + seq) div {BUCKET_EVENTS}"))
    claimed = f.expr("if(left_by = 'claim', seq, null)")
    queue = ("tenant", "command", "priority", "shard")
    # The highest entry of the buckets before, of which there are few; then in order inside the bucket.
    before = Window.partitionBy(*queue).orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    of_buckets = periods.groupBy(*queue, "bucket").agg(f.max(claimed).alias("highest"))
    of_buckets = of_buckets.select(*queue, "bucket", f.max("highest").over(before).alias("passed_earlier"))
    inside = Window.partitionBy(*queue, "bucket").orderBy(f.col("left").asc_nulls_last())
    passed = f.max(claimed).over(inside.rowsBetween(Window.unboundedPreceding, -1))
    periods = periods.withColumn("passed_inside", passed).join(of_buckets, [*queue, "bucket"])
    return periods.withColumn("passed_by", f.greatest("passed_earlier", "passed_inside"))


def last_states(events: DataFrame, listing: DataFrame, settled: Mapping[int, int] | None = None) -> DataFrame:
    """Joins the last event of each task with the store's listing (tenant, task_id, status).

    A store in use changes between two reads. So: record the end of each shard's log (`settled`, the number of the next
    event), then list, then read the events. A task with an event from `settled` on is not checked; all others did not
    change in between.
    """
    last = events.groupBy("task_id").agg(
        f.max_by(f.struct("tenant", "move", "status_after", "seq"), "seq").alias("last")
    )
    last = last.select(
        "task_id", f.col("last.tenant").alias("event_tenant"), "last.move", "last.status_after", "last.seq"
    )
    listed = listing.select("task_id", f.col("tenant").alias("listed_tenant"), f.col("status").alias("listed"))
    shard = f.conv(f.right("task_id", f.lit(4)), 16, 10).cast("int")
    both = last.join(listed, "task_id", "full_outer").withColumn("shard", shard)
    both = both.join(_untrimmed(events), "shard", "left").withColumn(
        "tenant", f.coalesce("event_tenant", "listed_tenant")
    )
    is_settled = f.lit(True)
    if settled is not None:
        ends = f.create_map(*(f.lit(n) for pair in settled.items() for n in pair))
        is_settled = f.coalesce(f.col("seq") < f.try_element_at(ends, "shard"), f.col("seq").isNull())
    return both.withColumn("is_settled", is_settled)


def _untrimmed(events: DataFrame) -> DataFrame:
    """Returns for each shard whether its log has its first event."""
    return f.broadcast(events.groupBy("shard").agg((f.min("seq") == 1).alias("is_whole")))
