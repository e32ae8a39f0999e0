"""Describes bronze and silver: one row per event, per delivery and per task."""

from codeq.pipeline.lake.tables.table import BOOL, INT, LONG, STRING, TIME, Column, Table
from codeq.wire import events

_KINDS = {"int32": INT, "int64": LONG, "string": STRING, "timestamp": TIME}
_EVENT_TEXTS = {
    "shard": "The shard whose log holds the event.",
    "seq": "Its number in the shard, without gaps.",
    "at": "When the move was made.",
    "move": "What happened: enqueue, claim, complete, fail, nack, expire, abandon, promote, cancel, replay, purge.",
    "tenant": "Whose task it is.",
    "command": "The routing key of the task.",
    "task_id": "The task.",
    "priority": "0 to 9, 9 first.",
    "status_before": "Status before the move; null for enqueue.",
    "status_after": "Status after the move.",
    "attempts": "Failed deliveries since it was enqueued or replayed.",
    "deliveries": "Deliveries since it was enqueued or replayed.",
    "max_attempts": "Failed deliveries that make it dead.",
    "lease_token": "Number of the latest delivery over the whole life of the task; 0 before the first.",
    "worker_id": "Who holds it, or held it when it ended.",
    "lease_until": "On claim: when the lease ends unless it is extended.",
    "visible_at": "While delayed: when it may be delivered.",
    "error": "Why it failed last.",
    "payload_bytes": "Size of its payload.",
    "trace_id": "Trace that the producer was in.",
    "artifacts": "Files of its result, links included: on complete and fail, and on purge, which deletes them.",
    "artifact_bytes": "Their bytes together.",
    "worker_name": "What the worker of the latest delivery calls itself; nothing vouches for it.",
}

BRONZE_EVENTS = Table(
    "bronze_events",
    "Every event of the log as it was, appended and never changed.",
    ("shard", "seq"),
    None,
    tuple(Column(name, _KINDS[kind], _EVENT_TEXTS[name]) for name, kind, _ in events.COLUMNS),
)

SILVER_ATTEMPTS = Table(
    "silver_attempts",
    "One row per delivery. An open row is a delivery under way, or one to come: its task is ready or delayed, and "
    "`claimed_at` is null. Times of events that were already trimmed are null.",
    ("task_id", "lease_token"),
    "is_open",
    (
        Column("tenant", STRING, "Whose task it is."),
        Column("command", STRING, "The routing key of the task."),
        Column("task_id", STRING, "The task."),
        Column("shard", INT, "Its shard."),
        Column("priority", INT, "0 to 9, 9 first."),
        Column("max_attempts", INT, "Failed deliveries that make the task dead."),
        Column("lease_token", LONG, "Number of this delivery over the whole life of the task, from 1."),
        Column(
            "attempt", INT, "Number of this try since it was enqueued or replayed: failed deliveries before, plus 1."
        ),
        Column("worker_id", STRING, "Who claimed it."),
        Column(
            "ready_by", STRING, "What made it ready: enqueue, nack, expire, abandon, replay; promote if that is lost."
        ),
        Column("visible_at", TIME, "The time it was delayed to; null if it was not."),
        Column("ready_at", TIME, "When it could be claimed: `visible_at`, or when it entered the queue."),
        Column("claimed_at", TIME, "When the delivery began."),
        Column("lease_until", TIME, "When the lease was to end, as given at the claim; heartbeats are no events."),
        Column("ended_at", TIME, "When the delivery ended."),
        Column("ended_by", STRING, "complete, fail, nack, expire, abandon or cancel."),
        Column("status_after", STRING, "Status of the task after that: PENDING means it is tried again."),
        Column("is_dead", BOOL, "Whether this end sent the task to the dead-letter queue."),
        Column("error", STRING, "Why it failed; null if it did not."),
        Column("wait_ms", LONG, "From ready to claimed."),
        Column("run_ms", LONG, "From claimed to ended."),
        Column("first_seq", LONG, "First event of the delivery: what made it ready."),
        Column("last_seq", LONG, "Last event of the delivery."),
        Column("is_open", BOOL, "Whether it has not ended yet."),
        Column("worker_name", STRING, "What that worker calls itself, such as `host:pid`; nothing vouches for it."),
    ),
)

SILVER_TASKS = Table(
    "silver_tasks",
    "One row per task. Open rows are live tasks, and dead ones, which may be replayed until they are purged.",
    ("task_id",),
    "is_open",
    (
        Column("tenant", STRING, "Whose task it is."),
        Column("command", STRING, "The routing key of the task."),
        Column("task_id", STRING, "The task."),
        Column("shard", INT, "Its shard."),
        Column("priority", INT, "0 to 9, 9 first."),
        Column("max_attempts", INT, "Failed deliveries that make it dead."),
        Column("payload_bytes", LONG, "Size of its payload."),
        Column("trace_id", STRING, "Trace that the producer was in."),
        Column("enqueued_at", TIME, "When it was enqueued; null if that event was already trimmed."),
        Column("first_claimed_at", TIME, "When its first delivery began; null if there was none or it was trimmed."),
        Column("ended_at", TIME, "When it ended last; null while it is live."),
        Column("status", STRING, "PENDING, IN_PROGRESS, COMPLETED, FAILED or CANCELLED."),
        Column("outcome", STRING, "live, completed, failed (by a worker's verdict), dead or cancelled."),
        Column("is_dead", BOOL, "Whether it is, or was when it was purged, in the dead-letter queue."),
        Column("deliveries", LONG, "Deliveries over its whole life."),
        Column("attempts", INT, "Failed deliveries since it was enqueued or replayed."),
        Column("current_deliveries", INT, "Deliveries since it was enqueued or replayed."),
        Column("nacks", LONG, "Deliveries that a worker nacked."),
        Column("expiries", LONG, "Deliveries whose lease ran out."),
        Column("abandons", LONG, "Deliveries returned without counting an attempt."),
        Column("replays", LONG, "Times it was replayed from the dead-letter queue."),
        Column("promotes", LONG, "Times that a delay of it ended."),
        Column("total_wait_ms", LONG, "From ready to claimed, over all deliveries."),
        Column("total_run_ms", LONG, "From claimed to ended, over all deliveries that have ended."),
        Column("end_to_end_ms", LONG, "From enqueued to ended."),
        Column("last_error", STRING, "Why it failed last, also if it was completed after that."),
        Column("last_worker", STRING, "Who claimed it last."),
        Column("last_move", STRING, "Its latest event but a purge."),
        Column("last_at", TIME, "When that was."),
        Column("visible_at", TIME, "While it is delayed or was just promoted: the time it was delayed to."),
        Column("first_seq", LONG, "Its first event."),
        Column("last_seq", LONG, "Its latest event but a purge."),
        Column("is_open", BOOL, "Whether it is live, or dead and not purged."),
        Column("artifacts", INT, "Files of its result, links included."),
        Column("artifact_bytes", LONG, "Their bytes together."),
    ),
)

AUDIT_VIOLATIONS = Table(
    "audit_violations",
    "Events that broke a rule of the audit when silver took them in: up to a hundred per rule and batch. The table is "
    "there once a rule was broken. A run that died may have left a row twice.",
    ("rule", "shard", "seq"),
    None,
    (
        Column("rule", STRING, "The rule that was broken."),
        Column("tenant", STRING, "Whose task it is; null if the rule is about a shard."),
        Column("task_id", STRING, "The task; null if the rule is about a shard."),
        Column("shard", INT, "The shard."),
        Column("seq", LONG, "The event."),
        Column("detail", STRING, "What is wrong."),
    ),
)

AUDIT_QUEUES = Table(
    "audit_queues",
    "How far each queue was claimed, by which the audit tells whether a task was overtaken. Rows of the batch that "
    "silver_tasks is at have the token that its commit names; others are of the batch before, or of a run that died.",
    ("tenant", "command", "priority", "shard", "token"),
    None,
    (
        Column("tenant", STRING, "Whose tasks they are."),
        Column("command", STRING, "The routing key of the tasks."),
        Column("priority", INT, "0 to 9, 9 first."),
        Column("shard", INT, "The shard."),
        Column("highest", LONG, "Of the events that made claimed tasks ready, the last."),
        Column("token", LONG, "The commit that the row belongs to."),
    ),
)
