"""What the service counts, for Prometheus. Names are the original codeQ's; values are exact per tenant and command."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from codeq.domain.queue import QueueCounts, QueueKey
from codeq.domain.task import Move, Task
from codeq.store.interface import Listener

QUEUES_MAX = 1000
"""Label sets per metric: queues past this number are counted together, as tenant and command `other`."""

LATENCY_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_FSYNC_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
_GROUP_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_HTTP_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 60)
_EXPIRE = Move.EXPIRE

Labels = tuple[str, str]


class _FastHistogram:
    """A histogram that costs half a microsecond per observation, where the library's takes several."""

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.sum_s += seconds
        self.counts[bisect_left(self.bounds, seconds)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        names = [*[str(float(bound)) for bound in self.bounds], "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class Metrics(Listener):
    """Counts what the store reports, so that no handler counts anything."""

    def __init__(self) -> None:
        self._moves: defaultdict[tuple[str, str, str, str], int] = defaultdict(int)
        self._latency: defaultdict[tuple[str, str, str], _FastHistogram] = defaultdict(
            lambda: _FastHistogram(LATENCY_BUCKETS_S)
        )
        self._answers: defaultdict[tuple[str, int], _FastHistogram] = defaultdict(
            lambda: _FastHistogram(_HTTP_BUCKETS_S)
        )
        self._known: set[Labels] = set()
        self._rate_limit_hits: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._queues: dict[QueueKey, QueueCounts] = {}
        self._now_ms = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.fsync_seconds = Histogram(
            "codeq_fsync_seconds", "Time to force one group to disk", buckets=_FSYNC_BUCKETS_S, registry=self.registry
        )
        self.fsync_calls = Histogram(
            "codeq_fsync_group_calls",
            "Calls that shared one fsync; creates, or results, of one tenant that arrive together count as one",
            buckets=_GROUP_BUCKETS,
            registry=self.registry,
        )

    def moved(self, tasks: Sequence[Task]) -> None:
        moves = self._moves
        for task in tasks:
            move = (task.tenant, task.command, task.move, task.status)
            if move not in moves:
                move = (*self._labels(task.tenant, task.command), task.move, task.status)
            moves[move] += 1
            if task.ended_ms == task.updated_ms and task.ended_ms:
                self._latency[move[0], move[1], task.status].observe((task.ended_ms - task.created_ms) / 1000)

    def flushed(self, calls: int, seconds: float) -> None:
        self.fsync_seconds.observe(seconds)
        self.fsync_calls.observe(calls)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._answers[route, status].observe(seconds)

    def rate_limited(self, scope: str, operation: str) -> None:
        self._rate_limit_hits[scope, operation] += 1

    def render(self, queues: dict[QueueKey, QueueCounts], now_ms: int) -> bytes:
        self._queues, self._now_ms = queues, now_ms
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        yield from self._counters()
        yield from self._latencies()
        yield from self._gauges()

    def _labels(self, tenant: str, command: str) -> Labels:
        labels = (tenant, command)
        if labels not in self._known:
            if len(self._known) >= QUEUES_MAX:
                return "other", "other"
            self._known.add(labels)
        return labels

    def _counters(self) -> Iterable[Metric]:
        by_queue = ["tenant", "command"]
        created = CounterMetricFamily("codeq_task_created", "Tasks enqueued", labels=by_queue)
        claimed = CounterMetricFamily("codeq_task_claimed", "Tasks claimed by workers", labels=by_queue)
        ended = CounterMetricFamily("codeq_task_completed", "Tasks ended", labels=[*by_queue, "status"])
        expired = CounterMetricFamily("codeq_lease_expired", "Leases that ran out", labels=by_queue)
        moves = CounterMetricFamily("codeq_task_moves", "Moves of tasks, by name", labels=[*by_queue, "move", "status"])
        sums: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        for (tenant, command, move, status), number in self._moves.items():
            moves.add_metric([tenant, command, move, status], number)
            sums[tenant, command, move] += number
            if status in ("COMPLETED", "FAILED", "CANCELLED") and move != Move.PURGE:
                ended.add_metric([tenant, command, status], number)
        for (tenant, command, move), number in sums.items():
            for family, of in ((created, Move.ENQUEUE), (claimed, Move.CLAIM), (expired, Move.EXPIRE)):
                if move == of:
                    family.add_metric([tenant, command], number)
        hits = CounterMetricFamily("codeq_rate_limit_hits", "Requests refused", labels=["scope", "operation"])
        for (scope, operation), number in self._rate_limit_hits.items():
            hits.add_metric([scope, operation], number)
        return (created, claimed, _merged(ended), expired, moves, hits)

    def _latencies(self) -> Iterable[Metric]:
        ended = HistogramMetricFamily(
            "codeq_task_processing_latency_seconds", "From enqueue to end", labels=["tenant", "command", "status"]
        )
        for labels, times in self._latency.items():
            ended.add_metric(list(labels), times.cumulative(), times.sum_s)
        http = HistogramMetricFamily("codeq_http_request_seconds", "Time to answer", labels=["route", "status"])
        for (route, status), times in self._answers.items():
            http.add_metric([route, str(status)], times.cumulative(), times.sum_s)
        return (ended, http)

    def _gauges(self) -> Iterable[Metric]:
        depth = GaugeMetricFamily("codeq_queue_depth", "Tasks by index", labels=["tenant", "command", "queue"])
        dead = GaugeMetricFamily("codeq_dlq_depth", "Dead tasks", labels=["tenant", "command"])
        oldest = GaugeMetricFamily(
            "codeq_oldest_pending_age_seconds", "How long the first in line waits", labels=["tenant", "command"]
        )
        sums: defaultdict[Labels, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        ages: defaultdict[Labels, float] = defaultdict(float)
        for key, counts in self._queues.items():
            labels = self._labels(*key)
            for i, number in enumerate((counts.pending, counts.delayed, counts.in_progress, counts.dead)):
                sums[labels][i] += number
            if counts.oldest_ms is not None:
                ages[labels] = max(ages[labels], (self._now_ms - counts.oldest_ms) / 1000)
        for labels, numbers in sums.items():
            for name, number in zip(("ready", "delayed", "in_progress", "dlq"), numbers, strict=True):
                depth.add_metric([*labels, name], number)
            dead.add_metric(list(labels), numbers[3])
            oldest.add_metric(list(labels), ages[labels])
        return (depth, dead, oldest)


def _merged(family: CounterMetricFamily) -> CounterMetricFamily:
    """Merges samples with equal labels: several moves may end a task with the same status."""
    sums: defaultdict[tuple[tuple[str, str], ...], float] = defaultdict(float)
    for sample in family.samples:
        sums[tuple(sample.labels.items())] += sample.value
    merged = CounterMetricFamily(family.name, family.documentation, labels=["tenant", "command", "status"])
    for labels, value in sums.items():
        merged.add_metric([text for _, text in labels], value)
    return merged
