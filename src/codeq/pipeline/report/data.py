"""The data of a report. The fields are also the names in its JSON."""

from datetime import datetime

from msgspec import Struct, field


class Totals(Struct, frozen=True, kw_only=True):
    events: int = 0
    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    """In the dead-letter queue: died, and not replayed since."""
    cancelled: int = 0
    live: int = 0
    running: int = 0
    deliveries: int = 0
    payload_bytes: int = 0
    webhooks: int = 0
    """Result callbacks. They are tasks too, of a system queue, and counted nowhere else here."""


class TimelinePoint(Struct, frozen=True, kw_only=True):
    """One step of the timeline."""

    at: datetime
    enqueued: int
    completed: int
    failed: int
    dead: int
    backlog: int
    """Live tasks at the end of the step."""
    running: int
    """Tasks in progress at the end of the step."""


class Percentiles(Struct, frozen=True, kw_only=True):
    number: int
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


class Latency(Struct, frozen=True, kw_only=True):
    """Latencies of one command, or of one step of time."""

    command: str | None = None
    at: datetime | None = None
    wait: Percentiles
    run: Percentiles
    end_to_end: Percentiles


class Outcomes(Struct, frozen=True, kw_only=True):
    command: str
    enqueued: int
    completed: int
    failed: int
    dead: int
    cancelled: int
    live: int


class DeadLetter(Struct, frozen=True, kw_only=True):
    signature: str
    deaths: int
    first_at: datetime
    last_at: datetime
    tenants: list[str]
    commands: list[str]
    workers: list[str]
    task_ids: list[str]
    errors: list[str]


class TenantUsage(Struct, frozen=True, kw_only=True):
    tenant: str
    tasks: int
    completed: int
    deliveries: int
    payload_bytes: int
    run_seconds: float
    artifacts: int = 0
    artifact_bytes: int = 0
    webhooks: int = 0
    """Result callbacks, which are not among its tasks."""
    webhook_attempts: int = 0


class WorkerUsage(Struct, frozen=True, kw_only=True):
    worker: str
    tenant: str
    deliveries: int
    completed: int
    failures: int
    expiries: int
    busy_seconds: float
    failure_share: float | None


class Retries(Struct, frozen=True, kw_only=True):
    command: str
    deliveries: int
    nacks: int
    expiries: int
    abandons: int
    deaths: int
    retry_share: float | None
    took: list[int]
    """The number of tasks that took 1, 2, 3, 4, 5, 6 to 10, and more deliveries."""


class ServiceLevel(Struct, frozen=True, kw_only=True):
    command: str
    target_ms: int
    objective: float
    tasks: int
    good: int
    late: int
    failed: int
    share: float | None
    burn: float | None


class Capacity(Struct, frozen=True, kw_only=True):
    """The capacity that one command needed in its busiest hour."""

    command: str
    hour: datetime
    arrivals_per_second: float
    service_ms: float | None
    load: float | None
    utilisation: float | None
    workers: int
    workers_needed: int | None
    wait_target_ms: int


class RuleResult(Struct, frozen=True, kw_only=True):
    """The verdict of the audit on one rule."""

    rule: str
    text: str
    label: str = field(name="word")
    checked: int
    violations: int
    examples: list[dict[str, str | int | None]] = []


class ReportData(Struct, frozen=True, kw_only=True):
    title: str
    made_at: datetime
    first_at: datetime | None
    last_at: datetime | None
    step_seconds: int
    totals: Totals
    audit: list[RuleResult] = []
    timeline: list[TimelinePoint] = []
    latency_over_time: list[Latency] = []
    latency: list[Latency] = []
    outcomes: list[Outcomes] = []
    dead_letters: list[DeadLetter] = []
    tenants: list[TenantUsage] = []
    workers: list[WorkerUsage] = []
    retries: list[Retries] = []
    service_levels: list[ServiceLevel] = []
    capacity: list[Capacity] = []
