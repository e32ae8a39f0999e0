"""The rules of the audit, as SQL conditions over four views of the log.

`task_steps` joins every event with the event before it of the same task; `shard_sequence`, with the number before it in
its shard; `ready_periods` has one row per period in which a task was ready in its queue; `last_states` joins the last
event of each task with the store's own listing. A rule names its view, the rows it applies to, and what breaks it.

A log may have been trimmed. Rules that compare with an earlier event skip the first event of a trimmed log, so no rule
is broken by a correct log, whole or trimmed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

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


NUMBERS_PER_BUCKET = 1_000_000
"""Events of a shard whose numbers are compared by one Spark task."""


class LogView(StrEnum):
    TASK_STEPS = "task_steps"
    SHARD_SEQUENCE = "shard_sequence"
    READY_PERIODS = "ready_periods"
    LAST_STATES = "last_states"


@dataclass(frozen=True)
class Rule:
    name: str
    text: str
    view: LogView
    applies: str
    """Whether a row is checked, in SQL."""
    broken: str
    """Whether a row breaks the rule, in SQL."""
    detail: str
    """Describes what is wrong with the row, in SQL."""

    def violations(self) -> Column:
        return f.count_if(f.expr(f"({self.applies}) and coalesce({self.broken}, false)"))

    def checked(self) -> Column:
        return f.count_if(f.expr(self.applies))

    def offending(self, rows: DataFrame) -> DataFrame:
        """Returns the rows that break the rule: rule, tenant, task_id, shard, seq, detail."""
        found = rows.where(f"({self.applies}) and ({self.broken})")
        return found.select(
            f.lit(self.name).alias("rule"), "tenant", "task_id", "shard", "seq", f.expr(self.detail).alias("detail")
        )


def _legal() -> str:
    cases = [
        (move, "is null" if before is None else f"= '{before}'", after)
        for move, statuses in LEGAL.items()
        for before, after in sorted(statuses, key=str)
    ]
    return " or ".join(
        f"(move = '{move}' and status_before {before} and status_after = '{after}')" for move, before, after in cases
    )


RULES = (
    Rule(
        "accounted",
        "Every acknowledged task has ended, or has the status in the store that its last event has.",
        LogView.LAST_STATES,
        "is_settled",
        "(move is null and is_whole) or (move = 'purge') <> (listed is null) or listed <> status_after",
        "case when move is null then 'listed, and there is no event for it'"
        " when move = 'purge' then 'purged, and still listed'"
        " when listed is null then concat('lost: its last event is ', move, ', and the store does not know it')"
        " else concat('listed as ', listed, ', and ', status_after, ' by its events') end",
    ),
    Rule(
        "one_result",
        "A result of a task is accepted at most once, and once more after each replay.",
        LogView.TASK_STEPS,
        "move in ('complete', 'fail')",
        "last_result > coalesce(last_replay, 0)",
        "concat(move, ' although event ', last_result, ' was a result already')",
    ),
    Rule(
        "lease_tokens",
        "Every claim has a higher lease token than any before, and no other move changes it.",
        LogView.TASK_STEPS,
        "not is_first",
        "if(move = 'claim', lease_token <= highest_token, lease_token <> lease_token_before)",
        "concat(move, ' under token ', lease_token, ' after token ', lease_token_before)",
    ),
    Rule(
        "one_lease",
        "A task is not delivered while the delivery before has not ended.",
        LogView.TASK_STEPS,
        "move = 'claim'",
        "status_after_before = 'IN_PROGRESS'",
        "concat('claimed by ', worker_id, ' while held by ', coalesce(worker_id_before, 'another'))",
    ),
    Rule(
        "fifo",
        "Within one tenant, command, priority and shard, tasks are delivered in the order in which they became ready.",
        LogView.READY_PERIODS,
        "true",
        "passed_by > seq",
        "concat('ready since event ', seq, ', but one that was ready later, at event ', passed_by,"
        " ', was claimed before it')",
    ),
    Rule(
        "not_early",
        "Nothing is delivered before its visible time.",
        LogView.TASK_STEPS,
        "move in ('claim', 'promote')",
        "at < if(move_before = 'promote', visible_at_second_before, visible_at_before)",
        "concat(move, ' at ', at, ', but not visible before ',"
        " if(move_before = 'promote', visible_at_second_before, visible_at_before))",
    ),
    Rule(
        "attempts_limit",
        "A task that may still be delivered has attempts left, and none has more attempts than its limit.",
        LogView.TASK_STEPS,
        "true",
        "attempts > max_attempts or (status_after in ('PENDING', 'IN_PROGRESS') and attempts >= max_attempts)",
        "concat(attempts, ' of ', max_attempts, ' attempts and ', status_after)",
    ),
    Rule(
        "attempts_count",
        "A nack and an expiry count one attempt, a claim one delivery, enqueue and replay start both from none.",
        LogView.TASK_STEPS,
        "not is_first or move = 'enqueue'",
        "attempts <> case when move in ('enqueue', 'replay') then 0"
        " when move in ('nack', 'expire') then attempts_before + 1 else attempts_before end"
        " or deliveries <> case when move in ('enqueue', 'replay') then 0"
        " when move = 'claim' then deliveries_before + 1 else deliveries_before end",
        "concat(move, ': attempts ', coalesce(attempts_before, 0), ' to ', attempts, ', deliveries ',"
        " coalesce(deliveries_before, 0), ' to ', deliveries)",
    ),
    Rule(
        "transitions",
        "Every move starts where the one before it ended, and is one of those that a task can make.",
        LogView.TASK_STEPS,
        "true",
        f"not ({_legal()}) or (is_first and is_whole and move <> 'enqueue')"
        " or (not is_first and (move = 'enqueue' or move_before = 'purge'"
        " or not status_before <=> status_after_before))"
        " or (move = 'replay' and move_before not in ('nack', 'expire', 'abandon'))",
        "concat(move, ' from ', coalesce(status_before, 'nothing'), ' to ', status_after, ' after ',"
        " coalesce(move_before, 'nothing'))",
    ),
    Rule(
        "gapless",
        "The events of a shard are numbered without gaps and without repeats.",
        LogView.SHARD_SEQUENCE,
        "true",
        "seq <> seq_before + 1",
        "if(seq = seq_before, concat('event ', seq, ' is there twice'),"
        " concat('events ', seq_before + 1, ' to ', seq - 1, ' are missing'))",
    ),
)


# -- views -------------------------------------------------------------------------------------------------------------

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
    """Joins every event with the number before its own in the shard. A Spark task sorts NUMBERS_PER_BUCKET of them; the
    first of these is compared with the last of those before, of which there are few.
    """
    bucket = f.floor(f.col("seq") / NUMBERS_PER_BUCKET).alias("bucket")
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
    by_leaving = Window.partitionBy("tenant", "command", "priority", "shard").orderBy(f.col("left").asc_nulls_last())
    claimed = f.expr("if(left_by = 'claim', seq, null)")
    return periods.withColumn("passed_by", f.max(claimed).over(by_leaving.rowsBetween(Window.unboundedPreceding, -1)))


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
