"""Describes gold: figures per minute, hour or day that add up, so that a run rewrites only days with new events."""

from codeq.pipeline.lake.tables.table import (
    BINARY,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    STRINGS,
    TIME,
    Column,
    Merge,
    Table,
)

_DAY = Column("day", DATE, "The day, in UTC, by which the files are split.")
_TENANT = Column("tenant", STRING, "Whose tasks they are.")
_COMMAND = Column("command", STRING, "The routing key of the tasks.")
_PRIORITY = Column("priority", INT, "0 to 9, 9 first.")
_HOUR = Column("hour", TIME, "Start of the hour.")


def _sum(name: str, text: str) -> Column:
    return Column(name, LONG, text, Merge.SUM)


def _percentiles(prefix: str, text: str) -> tuple[Column, ...]:
    return tuple(Column(f"{prefix}_p{p}_ms", DOUBLE, f"{text}: {p} % took no longer.") for p in (50, 90, 95, 99))


GOLD_THROUGHPUT = Table(
    "gold_throughput",
    "What happened in each minute: how often each move was made. `entered` minus `left` adds up to the backlog.",
    ("tenant", "command", "priority", "minute"),
    "day",
    (
        _DAY,
        _TENANT,
        _COMMAND,
        _PRIORITY,
        Column("minute", TIME, "Start of the minute."),
        _sum("enqueues", "Tasks enqueued."),
        _sum("claims", "Deliveries begun."),
        _sum("completes", "Tasks completed."),
        _sum("fails", "Tasks failed by a worker's verdict."),
        _sum("nacks", "Deliveries nacked."),
        _sum("expiries", "Leases that ran out."),
        _sum("abandons", "Deliveries returned without counting an attempt."),
        _sum("promotes", "Delays that ended."),
        _sum("cancels", "Tasks cancelled."),
        _sum("replays", "Dead tasks replayed."),
        _sum("purges", "Ended tasks deleted."),
        _sum("deaths", "Tasks that went to the dead-letter queue."),
        _sum("entered", "Tasks that came to be live: enqueued or replayed."),
        _sum("left", "Tasks that ceased to be live: completed, failed, dead or cancelled."),
        _sum("began", "Tasks that came to be in progress."),
        _sum("stopped", "Tasks that ceased to be in progress."),
        _sum("payload_bytes", "Payload bytes of the tasks enqueued."),
    ),
)

GOLD_LATENCY = Table(
    "gold_latency",
    "How long deliveries waited and ran, and tasks took from end to end, by the time at which they ended. The sketches "
    "are KLL sketches of doubles (Apache DataSketches): exact up to about 200 values, then within 1.4 % of rank.",
    ("grain", "start", "tenant", "command", "priority"),
    "day",
    (
        _DAY,
        Column("grain", STRING, "hour or day."),
        Column("start", TIME, "Start of the hour or day."),
        _TENANT,
        _COMMAND,
        _PRIORITY,
        _sum("waits", "Deliveries whose wait is known."),
        _sum("runs", "Deliveries whose run is known."),
        _sum("ends", "Tasks completed or failed whose end-to-end time is known."),
        _sum("wait_ms", "Time waited, from ready to claimed."),
        _sum("run_ms", "Time run, from claimed to ended."),
        _sum("end_to_end_ms", "Time taken, from enqueued to ended."),
        *_percentiles("wait", "Waits"),
        *_percentiles("run", "Runs"),
        *_percentiles("end_to_end", "Tasks"),
        Column("wait_sketch", BINARY, "Waits in milliseconds.", Merge.KLL),
        Column("run_sketch", BINARY, "Runs in milliseconds.", Merge.KLL),
        Column("end_to_end_sketch", BINARY, "End-to-end times in milliseconds.", Merge.KLL),
    ),
)

GOLD_SERVICE_LEVELS = Table(
    "gold_service_levels",
    "How many tasks met the target of their command. A task meets it if it is completed within the time; one that "
    "fails or dies does not; cancelled ones do not count. A changed target begins new rows.",
    ("hour", "tenant", "command", "target_ms", "objective"),
    "day",
    (
        _DAY,
        _HOUR,
        _TENANT,
        _COMMAND,
        Column("target_ms", LONG, "End-to-end time within which a task is to be completed."),
        Column("objective", DOUBLE, "Share of tasks that is to meet it."),
        _sum("tasks", "Tasks that completed, failed or died."),
        _sum("good", "Those that were completed within the time."),
        _sum("late", "Those that were completed after it."),
        _sum("failed", "Those that failed or died."),
        Column("share", DOUBLE, "`good` of `tasks`."),
        Column("burn", DOUBLE, "How fast the error budget is used: 1 uses it up exactly, 2 twice over."),
    ),
)

GOLD_RETRIES = Table(
    "gold_retries",
    "How deliveries ended, and how many of them a task took.",
    ("hour", "tenant", "command"),
    "day",
    (
        _DAY,
        _HOUR,
        _TENANT,
        _COMMAND,
        _sum("deliveries", "Deliveries that ended."),
        _sum("completes", "Those that completed their task."),
        _sum("fails", "Those that failed it for good."),
        _sum("nacks", "Those nacked."),
        _sum("expiries", "Those whose lease ran out."),
        _sum("abandons", "Those returned without counting an attempt."),
        _sum("cancels", "Those whose task was cancelled meanwhile."),
        _sum("deaths", "Those that sent their task to the dead-letter queue."),
        _sum("took_1", "Tasks completed or failed at the first delivery."),
        _sum("took_2", "At the second."),
        _sum("took_3", "At the third."),
        _sum("took_4", "At the fourth."),
        _sum("took_5", "At the fifth."),
        _sum("took_6_to_10", "At the sixth to tenth."),
        _sum("took_more", "Later."),
        Column("retry_share", DOUBLE, "Nacks, expiries and abandons of all deliveries."),
    ),
)

GOLD_DEAD_LETTERS = Table(
    "gold_dead_letters",
    "What tasks died of. Errors are made alike by their signature: numbers, ids, quoted text and paths are replaced.",
    ("day", "tenant", "signature"),
    "day",
    (
        _DAY,
        _TENANT,
        Column("signature", STRING, "The error without what differs from task to task."),
        _sum("deaths", "Tasks that died of it."),
        Column("first_at", TIME, "When the first did.", Merge.MIN),
        Column("last_at", TIME, "When the last did.", Merge.MAX),
        Column("commands", STRINGS, "Commands it befell, up to 20.", Merge.FEW, 20),
        Column("workers", STRINGS, "Workers it befell, up to 20.", Merge.FEW, 20),
        Column("task_ids", STRINGS, "Examples, up to 5: those that were enqueued first.", Merge.FEW, 5),
        Column("errors", STRINGS, "Errors in full, up to 5.", Merge.FEW, 5),
    ),
)

GOLD_USAGE = Table(
    "gold_usage",
    "What each tenant used in a day, to be billed.",
    ("day", "tenant"),
    "day",
    (
        _DAY,
        _TENANT,
        _sum("tasks", "Tasks enqueued, result callbacks not counted."),
        _sum("payload_bytes", "Their payload bytes."),
        _sum("deliveries", "Their deliveries that ended."),
        _sum("completes", "Tasks completed."),
        _sum("run_ms", "Time run, from claimed to ended."),
        Column("run_seconds", DOUBLE, "The same in seconds."),
        _sum("artifacts", "Files of results, links included."),
        _sum("artifact_bytes", "Their bytes."),
        _sum("webhooks", "Result callbacks: one for each task with a webhook that ended."),
        _sum("webhook_attempts", "Attempts to deliver them."),
    ),
)

GOLD_WORKERS = Table(
    "gold_workers",
    "What each worker did. Deliveries count in the hour in which they ended.",
    ("hour", "tenant", "worker_id"),
    "day",
    (
        _DAY,
        _HOUR,
        _TENANT,
        Column("worker_id", STRING, "The worker."),
        _sum("deliveries", "Deliveries that ended."),
        _sum("completes", "Those that completed their task."),
        _sum("failures", "Those that it failed or nacked."),
        _sum("expiries", "Those whose lease ran out."),
        _sum("abandons", "Those returned without counting an attempt."),
        _sum("busy_ms", "Time run. A worker with several tasks at once counts each."),
        Column("busy_seconds", DOUBLE, "The same in seconds."),
        Column("failure_share", DOUBLE, "Failures and expiries of its deliveries."),
        Column("first_at", TIME, "When the first of its deliveries began.", Merge.MIN),
        Column("last_at", TIME, "When the last ended.", Merge.MAX),
    ),
)

GOLD_CAPACITY = Table(
    "gold_capacity",
    "How many workers each command needs, by the Erlang C formula: tasks that arrive at random, one task at a time per "
    "worker. Rates are over the part of the hour in which anything happened, a minute at least.",
    ("hour", "tenant", "command"),
    "day",
    (
        _DAY,
        _HOUR,
        _TENANT,
        _COMMAND,
        _sum("arrivals", "Times that a task became ready or delayed: enqueued, replayed or returned."),
        _sum("deliveries", "Deliveries that ended."),
        _sum("run_ms", "Time they ran."),
        Column("first_at", TIME, "When the first of it happened.", Merge.MIN),
        Column("last_at", TIME, "When the last of it happened.", Merge.MAX),
        Column("worker_sketch", BINARY, "The workers seen, as an HLL sketch.", Merge.HLL),
        Column("workers", LONG, "How many workers were seen."),
        Column("seconds", DOUBLE, "From first to last, 60 at least."),
        Column("arrivals_per_second", DOUBLE, "Arrivals over these seconds."),
        Column("service_ms", DOUBLE, "Mean run of a delivery."),
        Column("load", DOUBLE, "Workers kept busy on average, in erlangs: arrival rate times mean run."),
        Column(
            "utilisation", DOUBLE, "Share of the workers' time that was run: above 1 they had several tasks at once."
        ),
        Column("wait_target_ms", LONG, "Mean wait that is aimed at."),
        Column("workers_needed", LONG, "Fewest workers, one task each, with a mean wait within the target."),
    ),
)

GOLD = (
    GOLD_THROUGHPUT,
    GOLD_LATENCY,
    GOLD_SERVICE_LEVELS,
    GOLD_RETRIES,
    GOLD_DEAD_LETTERS,
    GOLD_USAGE,
    GOLD_WORKERS,
    GOLD_CAPACITY,
)
