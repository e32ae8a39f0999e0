"""Data for a report: one day with busy hours, an incident, and names that would break a page without escaping."""

import math
import random
from datetime import UTC, datetime, timedelta

import msgspec

from codeq.pipeline.audit import RULES
from codeq.pipeline.report import data

START = datetime(2026, 3, 12, tzinfo=UTC)
COMMANDS = ("mail.send", "image.resize", "invoice.charge", "report.build", "search.index")


def sample() -> data.ReportData:
    dice = random.Random(4)
    timeline = _timeline(dice)
    total = {name: sum(getattr(m, name) for m in timeline) for name in ("enqueued", "completed", "failed", "dead")}
    last = timeline[-1]
    return data.ReportData(
        title="codeQ at acme, 12 March 2026",
        made_at=START + timedelta(days=1, minutes=4),
        first_at=START,
        last_at=START + timedelta(days=1),
        step_seconds=600,
        totals=data.Totals(
            events=total["enqueued"] * 3, **total, cancelled=318, live=last.backlog, running=last.running,
            deliveries=round(total["enqueued"] * 1.07), payload_bytes=total["enqueued"] * 412,
        ),
        audit=_audit(total["enqueued"] * 3),
        freshness=data.Freshness(
            events_behind=1204,
            size_bytes={"bronze": 412_000_000, "silver": 230_000_000, "gold": 3_100_000},
            runs=[
                data.Run(at=START + timedelta(days=1, minutes=-i), events=98_304, size_bytes=7_200_000,
                         seconds={"bronze": 1.1, "silver": 2.5, "gold": 3.25})
                for i in range(5)
            ],
        ),
        timeline=timeline,
        latency_over_time=[_latency(dice, at=START + timedelta(hours=hour)) for hour in range(24)],
        latency=[_latency(dice, command=command) for command in COMMANDS],
        outcomes=[_outcomes(dice, command, 60_000 // (i + 1)) for i, command in enumerate(COMMANDS)],
        dead_letters=_dead_letters(),
        tenants=[
            data.TenantUsage(tenant=tenant, tasks=n, completed=round(n * 0.97), deliveries=round(n * 1.07),
                        payload_bytes=n * 400, run_seconds=n * 0.31)
            for tenant, n in (("acme", 81_220), ("globex", 40_113), ("initech", 12_001), ("umbrella", 2904))
        ],
        workers=[
            data.WorkerUsage(worker=f"worker-{i}.fra1", tenant=dice.choice(("acme", "globex")), deliveries=n,
                        completed=round(n * 0.96), failures=round(n * 0.03), expiries=round(n * 0.01),
                        busy_seconds=n * 0.3, failure_share=0.04 + i / 300)
            for i, n in enumerate(sorted((dice.randrange(2000, 19_000) for _ in range(9)), reverse=True))
        ],
        retries=[
            data.Retries(command=command, deliveries=n, nacks=n // 30, expiries=n // 160, abandons=n // 300,
                         deaths=n // 900, retry_share=0.04 + n / 1e6,
                         took=[n, n // 15, n // 60, n // 200, n // 700, n // 2000, n // 9000])
            for n, command in zip((61_000, 30_400, 21_000, 15_600, 12_000), COMMANDS, strict=True)
        ],
        service_levels=[_service_level(*row) for row in (
            ("report.build", 600_000, 0.99, 15_600, 0.962), ("invoice.charge", 5000, 0.999, 21_000, 0.9986),
            ("mail.send", 60_000, 0.99, 61_000, 0.9967), ("image.resize", 30_000, 0.95, 30_400, 0.991),
            ("search.index", 120_000, 0.9, 12_000, 1.0),
        )],
        capacity=[
            data.Capacity(command=command, hour=START + timedelta(hours=14), arrivals_per_second=rate,
                          service_ms=service, load=rate * service / 1000, utilisation=rate * service / 1000 / workers,
                          workers=workers, workers_needed=needed, wait_target_ms=1000)
            for command, rate, service, workers, needed in (
                ("report.build", 0.31, 41_000.0, 14, 18), ("image.resize", 0.6, 2900.0, 6, 4),
                ("invoice.charge", 0.5, 640.0, 4, 2), ("mail.send", 1.4, 180.0, 4, 2),
                ("search.index", 0.2, 95.0, 2, 1),
            )
        ],
    )  # fmt: skip


def broken() -> data.ReportData:
    """Returns `sample` with a broken rule and with text that contains HTML."""
    whole = sample()
    evidence: dict[str, str | int | None] = {
        "tenant": "<b>acme</b>",
        "task_id": "019b76d1-8055-7002-8708-206ee7830000",
        "shard": 1,
        "seq": 4711,
        "detail": "claimed by w-2 while held by w-1",
    }
    first = data.RuleResult(
        rule="one_lease",
        text="A task is not delivered twice.",
        label="FAIL",
        checked=10,
        violations=1,
        examples=[evidence],
    )
    evil = msgspec.structs.replace(
        whole.dead_letters[0], signature="</script><script>alert(1)</script>", errors=["<img src=x>"]
    )
    return msgspec.structs.replace(whole, title="<i>title</i>", audit=[first, *whole.audit[1:]], dead_letters=[evil])


def _timeline(dice: random.Random) -> list[data.TimelinePoint]:
    moments, live = [], 900
    for i in range(144):
        busy = 420 + 520 * max(0, math.sin((i - 40) / 144 * 2 * math.pi)) ** 1.3
        enqueued = round(busy * dice.uniform(0.9, 1.1))
        incident = 84 <= i < 93
        room = round((enqueued if not incident else enqueued * 0.25) * 0.985 + max(0, live - 1000) * 0.16)
        completed = max(0, min(live + enqueued - 40, room))
        failed, dead = dice.randrange(6), dice.randrange(4) + (dice.randrange(25, 60) if incident else 0)
        live = max(0, live + enqueued - completed - failed - dead)
        moments.append(
            data.TimelinePoint(at=START + timedelta(minutes=10 * i), enqueued=enqueued, completed=completed,
                               failed=failed, dead=dead, backlog=live,
                               running=min(live, round(busy / 4 * dice.uniform(0.8, 1.2))))
        )  # fmt: skip
    return moments


def _latency(dice: random.Random, **of: object) -> data.Latency:
    def percentiles(median: float) -> data.Percentiles:
        value = median * dice.uniform(0.7, 1.6)
        return data.Percentiles(
            number=dice.randrange(3000, 9000), p50=value, p90=value * 3.1, p95=value * 5.5, p99=value * 21
        )

    return data.Latency(wait=percentiles(45), run=percentiles(310), end_to_end=percentiles(600), **of)  # type: ignore[arg-type]


def _outcomes(dice: random.Random, command: str, number: int) -> data.Outcomes:
    dead, failed, cancelled, live = (round(number * dice.uniform(0.002, top)) for top in (0.03, 0.02, 0.01, 0.06))
    return data.Outcomes(command=command, enqueued=number, completed=number - dead - failed - cancelled - live,
                         failed=failed, dead=dead, cancelled=cancelled, live=live)  # fmt: skip


def _service_level(command: str, target_ms: int, objective: float, tasks: int, share: float) -> data.ServiceLevel:
    good = round(tasks * share)
    late = (tasks - good) * 2 // 3
    return data.ServiceLevel(
        command=command, target_ms=target_ms, objective=objective, tasks=tasks, good=good, late=late,
        failed=tasks - good - late, share=share, burn=(1 - share) / (1 - objective),
    )  # fmt: skip


def _dead_letters() -> list[data.DeadLetter]:
    rows = [
        (
            "connect timeout after <n> ms to <url>",
            412,
            "connect timeout after 3000 ms to https://pay.example.org/v2/charge",
        ),
        ("cannot open <path>: no such file", 57, "cannot open /srv/in/4711.png: no such file"),
        ("LEASE_EXPIRED", 31, "LEASE_EXPIRED"),
        ("KeyError: <text>", 12, "KeyError: 'customer'"),
        ("template <text> needs <n> values, got <n>", 3, "template 'welcome' needs 4 values, got 3"),
    ]
    return [
        data.DeadLetter(signature=signature, deaths=deaths, first_at=START + timedelta(hours=2 + i),
                        last_at=START + timedelta(hours=23, minutes=-7 * i), tenants=["acme", "globex"][: 1 + i % 2],
                        commands=[COMMANDS[(i + 2) % 5]], workers=[f"worker-{n}.fra1" for n in range(i + 1)],
                        task_ids=[f"019ce1b{n}-8055-7002-8708-206ee7830000" for n in range(min(5, deaths))],
                        errors=[error])
        for i, (signature, deaths, error) in enumerate(rows)
    ]  # fmt: skip


def _audit(events: int) -> list[data.RuleResult]:
    return [data.RuleResult(rule=rule.name, text=rule.text, label="ok", checked=events, violations=0) for rule in RULES]
