"""What the service counts, for Prometheus. Names are the original codeQ's; values are exact per tenant and command."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from codeq.domain.queue import WEBHOOKS
from codeq.domain.task import Task
from codeq.server.histogram import FastHistogram
from codeq.server.queue_series import QueueSeriesTable
from codeq.server.settings import MetricsSettings
from codeq.server.webhooks.metrics import WebhookMetrics
from codeq.store.interface import Listener

_FSYNC_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
_GROUP_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_HTTP_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 60)
_HELD_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class FilterCounts(Protocol):
    """What is shown of a Bloom filter."""

    checks: int
    hits: int

    @property
    def size_bytes(self) -> int: ...


class Metrics(Listener):
    """Counts what the store reports, so that no handler counts anything. `scrape` writes it out."""

    def __init__(self, queues_max: int = MetricsSettings().queues_max) -> None:
        self.queues = QueueSeriesTable(queues_max)
        self.requests: defaultdict[tuple[str, int], FastHistogram] = defaultdict(lambda: FastHistogram(_HTTP_BUCKETS_S))
        """Times to answer, by route and status."""
        self._rate_limit_hits: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._sweep_failures: defaultdict[str, int] = defaultdict(int)
        self._unreadable = 0
        self._filters: Mapping[str, FilterCounts] = {}
        self._held = FastHistogram(_HELD_BUCKETS_S)
        self._held_max_s = 0.0
        self.registry = CollectorRegistry()
        """All that has few samples; the library takes about 10 µs for each."""
        self.registry.register(self)
        self.webhooks = WebhookMetrics()
        self.registry.register(self.webhooks)
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
        shown = self.queues.shown
        for task in tasks:
            series = shown.get((task.tenant, task.command)) or self.queues.of(task.tenant, task.command)
            series.moves[task.move, task.status] += 1
            if task.ended_ms == task.updated_ms and task.ended_ms:
                series.latency[task.status].observe((task.ended_ms - task.created_ms) / 1000)
                if task.command == WEBHOOKS:
                    self.webhooks.ended(task)

    def flushed(self, calls: int, seconds: float) -> None:
        self.fsync_seconds.observe(seconds)
        self.fsync_calls.observe(calls)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self.requests[route, status].observe(seconds)

    def rate_limited(self, scope: str, operation: str) -> None:
        self._rate_limit_hits[scope, operation] += 1

    def sweep_failed(self, role: str) -> None:
        self._sweep_failures[role] += 1

    def unreadable(self, key: bytes, reason: str) -> None:  # noqa: ARG002 - the store logs them
        self._unreadable += 1

    def show_filters(self, filters: Mapping[str, FilterCounts]) -> None:
        """Includes these Bloom filters, by name."""
        self._filters = filters

    def loop_held(self, seconds: float) -> None:
        self._held.observe(seconds)
        self._held_max_s = max(self._held_max_s, seconds)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        hits = CounterMetricFamily("codeq_rate_limit_hits", "Requests refused", labels=["scope", "operation"])
        for (scope, operation), number in self._rate_limit_hits.items():
            hits.add_metric([scope, operation], number)
        sweeps = CounterMetricFamily("codeq_sweep_failures", "Background sweeps that are retried", labels=["role"])
        for role, number in self._sweep_failures.items():
            sweeps.add_metric([role], number)
        unreadable = CounterMetricFamily("codeq_unreadable_records", "Stored records that could not be read")
        unreadable.add_metric([], self._unreadable)
        held = HistogramMetricFamily("codeq_loop_held_seconds", "How long callbacks held the event loop, by sampling")
        held.add_metric([], self._held.cumulative(), self._held.sum_s)
        longest = GaugeMetricFamily("codeq_loop_held_max_seconds", "The longest of them since the last scrape")
        longest.add_metric([], self._held_max_s)
        self._held_max_s = 0.0
        return (hits, sweeps, unreadable, held, longest, *self._of_filters())

    def _of_filters(self) -> Iterable[Metric]:
        if not self._filters:
            return
        size = GaugeMetricFamily("codeq_filter_bytes", "Memory of a Bloom filter", labels=["filter"])
        checks = CounterMetricFamily("codeq_filter_checks", "Checks of a Bloom filter", labels=["filter"])
        hits = CounterMetricFamily("codeq_filter_hits", "Checks it answered yes; a read follows", labels=["filter"])
        for name, counted in self._filters.items():
            size.add_metric([name], counted.size_bytes)
            checks.add_metric([name], counted.checks)
            hits.add_metric([name], counted.hits)
        yield from (size, checks, hits)
