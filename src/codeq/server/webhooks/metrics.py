"""What is counted of webhooks, for Prometheus. `codeq_webhook_deliveries_total` is the original codeQ's."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from codeq.domain.task import Move, Task
from codeq.server.histogram import FastHistogram
from codeq.usecases.subscribed_tenants import SubscriptionCounts

COMMANDS_MAX = 1000
"""Commands with counters of their own; the rest is counted as `other`."""
OTHER = "other"
RESULT = "task_result"
"""The kind of result callbacks."""
UNNAMED_MAX = 256
"""Dead deliveries of which a scrape reads the command; of more between two scrapes it is `other`."""
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60)


class WebhookMetrics:
    """Counts in the process that sends, and in the one that ends a delivery whose sender is gone. Registered with the
    others, as a collector of the library."""

    def __init__(self) -> None:
        self._deliveries: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._commands: set[str] = set()
        self._unnamed: list[Task] = []
        """Dead deliveries whose command nobody has read yet: it is in their payloads."""
        self._attempts: defaultdict[str, FastHistogram] = defaultdict(lambda: FastHistogram(_BUCKETS_S))
        self._in_flight: Callable[[], int] = lambda: 0
        self._open_breakers: Callable[[], int] = lambda: 0
        self._subscriptions: Callable[[], SubscriptionCounts] = SubscriptionCounts

    def show(self, *, in_flight: Callable[[], int], open_breakers: Callable[[], int]) -> None:
        """Includes these numbers, asked for at each scrape."""
        self._in_flight, self._open_breakers = in_flight, open_breakers

    def show_subscriptions(self, count: Callable[[], SubscriptionCounts]) -> None:
        """Includes how many subscriptions there are, by command."""
        self._subscriptions = count

    def attempted(self, seconds: float, answer: str) -> None:
        """Counts one attempt, with the class of its answer: `2xx`, ..., or `none`."""
        self._attempts[answer].observe(seconds)

    def delivered(self, kind: str, command: str, *, is_success: bool) -> None:
        """Counts the end of a delivery: success, or failure once it will not be tried again."""
        if command not in self._commands:
            if len(self._commands) >= COMMANDS_MAX:
                command = OTHER
            self._commands.add(command)
        self._deliveries[kind, command, "success" if is_success else "failure"] += 1

    def ended(self, delivery: Task) -> None:
        """Counts a delivery that died of expired or returned leases. Its sender counts all others."""
        if delivery.is_dead and delivery.move is not Move.NACK:
            if len(self._unnamed) < UNNAMED_MAX:
                self._unnamed.append(delivery)
            else:
                self.delivered(RESULT, OTHER, is_success=False)

    def take_unnamed(self) -> list[Task]:
        """Returns the deliveries to be counted by `delivered`, once their command is read."""
        taken, self._unnamed = self._unnamed, []
        return taken

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        deliveries = CounterMetricFamily(
            "codeq_webhook_deliveries",
            "Webhooks that were delivered, or given up",
            labels=["kind", "command", "outcome"],
        )
        for labels, number in self._deliveries.items():
            deliveries.add_metric(list(labels), number)
        attempts = HistogramMetricFamily(
            "codeq_webhook_attempt_seconds", "How long attempts took, by the class of the answer", labels=["answer"]
        )
        for answer, histogram in self._attempts.items():
            attempts.add_metric([answer], histogram.cumulative(), histogram.sum_s)
        in_flight = GaugeMetricFamily("codeq_webhook_in_flight", "Deliveries under way")
        in_flight.add_metric([], self._in_flight())
        breakers = GaugeMetricFamily("codeq_webhook_breakers_open", "Hosts to which nothing is sent for a while")
        breakers.add_metric([], self._open_breakers())
        return (deliveries, attempts, in_flight, breakers, self._active_subscriptions())

    def _active_subscriptions(self) -> Metric:
        active = GaugeMetricFamily(
            "codeq_subscriptions_active",
            "Subscriptions by command, `*` for those to all; the same on every server",
            labels=["command"],
        )
        counts = self._subscriptions()
        others = counts.others + counts.by_command.get(OTHER, 0)
        for command, number in counts.by_command.items():
            if command != OTHER:
                active.add_metric([command], number)
        if others:
            active.add_metric([OTHER], others)
        return active
