"""Writes out the metrics in the text format of Prometheus, in slices between which other calls run.

A scrape of a server with many queues is long, and anybody may ask for it. So calls that arrive meanwhile share it, it
pauses twice as long as it works, and it ends in time: queues that it could not count any more are summed as `other`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from time import perf_counter

from prometheus_client import generate_latest

from codeq.domain.queue import QueueCounts, QueueKey
from codeq.domain.task import Move
from codeq.server.histogram import FastHistogram
from codeq.server.metrics import Metrics
from codeq.server.queue_series import OTHER, QueueSeries, Ranking
from codeq.server.webhooks import metrics as webhooks
from codeq.usecases import deliver, queries
from codeq.usecases.attendance import Attendance
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core
from codeq.usecases.sweep import SWEEPER

BUDGET_S = 2.0
RANK_EVERY_MS = 60_000
"""How often a queue may get or lose its series: every new series costs Prometheus memory."""
_SLICE_S, _PAUSE_S = 0.002, 0.004
_QUEUES_AT_ONCE = 16
"""Queues whose oldest task is looked for together: on Redis each is two round trips."""


class Scraper:
    """Writes one scrape at a time, for all who ask meanwhile."""

    def __init__(self, metrics: Metrics, core: Core, *, budget_s: float = BUDGET_S) -> None:
        self._metrics = metrics
        self._core = core
        self._budget_s = budget_s
        self._running: asyncio.Task[bytes] | None = None
        self._ranked_ms = 0

    async def scrape(self) -> bytes:
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._write())
        return await asyncio.shield(self._running)

    async def _write(self) -> bytes:
        core, table = self._core, self._metrics.queues
        pace = _Pace(self._budget_s)
        text = _Text()
        for key, series in [*table.shown.items(), (OTHER, table.other)]:
            text.add_series(key, series)
            await pace.step()
        for (route, status), times in list(self._metrics.requests.items()):
            text.add_histogram("codeq_http_request_seconds", times, f'route="{route}",status="{status}"')
            await pace.step()
        ranking = table.ranking()
        await _Gauges(core, text, pace).add(list(table.shown), ranking)
        if core.now_ms() - self._ranked_ms >= RANK_EVERY_MS:
            self._ranked_ms = core.now_ms()
            table.rank(ranking)
            await pace.step()
        for delivery in self._metrics.webhooks.take_unnamed():
            command = await deliver.command_of(core, delivery)
            self._metrics.webhooks.delivered(webhooks.RESULT, command or webhooks.OTHER, is_success=False)
            await pace.step()
        return text.encoded() + generate_latest(self._metrics.registry)


class _Pace:
    """Lets other calls run after every slice of work, and knows when the time is up."""

    def __init__(self, budget_s: float) -> None:
        self._slice_began_s = perf_counter()
        self._ends_s = self._slice_began_s + budget_s

    @property
    def is_over(self) -> bool:
        return perf_counter() >= self._ends_s

    async def step(self) -> None:
        if perf_counter() - self._slice_began_s > _SLICE_S:
            await asyncio.sleep(_PAUSE_S)
            self._slice_began_s = perf_counter()


class _Gauges:
    """How many tasks the queues hold: of each that has a series, and of all others together."""

    def __init__(self, core: Core, text: "_Text", pace: _Pace) -> None:
        self._core = core
        self._text = text
        self._pace = pace
        self._others = [0, 0, 0, 0]
        self._attendance: dict[str, Attendance] = {}

    async def add(self, shown: Sequence[tuple[str, str]], ranking: Ranking) -> None:
        with_series: dict[tuple[str, str], QueueCounts | None] = dict.fromkeys(shown)
        is_whole = True
        async for part in queries.all_counts(self._core):
            await self._pace.step()
            if self._pace.is_over:
                is_whole = False
                break
            for key, counts in part.items():
                if key in with_series:
                    with_series[key] = counts
                else:
                    ranking.add(key, self._sum(counts))
        is_whole = await self._add_shown(with_series, ranking) and is_whole
        if any(self._others):
            self._text.add_counts(OTHER, self._others)
        self._text.add("codeq_scrape_truncated", "", int(not is_whole))

    async def _add_shown(self, known: Mapping[tuple[str, str], QueueCounts | None], ranking: Ranking) -> bool:
        """Adds the queues that have a series, with the age of their oldest task. Returns whether there was time for
        all. The others are shown without it if their counts are `known`, and else summed."""
        names = iter(known)
        is_whole = True
        while at_once := list(islice(names, _QUEUES_AT_ONCE)):
            await self._pace.step()
            in_time = not self._pace.is_over
            is_whole = is_whole and in_time
            looks = [self._counts(name, None if in_time else known[name], ages=in_time) for name in at_once]
            for name, counts in zip(at_once, await asyncio.gather(*looks), strict=True):
                if counts is None:
                    continue
                ranking.sizes[name] = sum(_numbers(counts))
                if in_time or known[name] is not None:
                    age_s = _age_s(counts, self._core.now_ms()) if in_time else None
                    self._text.add_counts(name, _numbers(counts), age_s)
                    self._text.add("codeq_queue_workers", _labels(name), await self._workers_on(*name))
                else:
                    self._sum(counts)
        return is_whole

    async def _counts(self, name: tuple[str, str], known: QueueCounts | None, *, ages: bool) -> QueueCounts | None:
        return known if known is not None else await queries.count(self._core, QueueKey(*name), ages=ages)

    async def _workers_on(self, tenant: str, command: str) -> int:
        if tenant not in self._attendance:
            self._attendance[tenant] = await Attendance.of(self._core, tenant, LoopBudget(self._core, SWEEPER))
        return self._attendance[tenant].workers_on(command)

    def _sum(self, counts: QueueCounts) -> int:
        numbers = _numbers(counts)
        self._others = [total + number for total, number in zip(self._others, numbers, strict=True)]
        return sum(numbers)


class _Text:
    """The samples of each metric, which the format wants together."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {name: [] for name in _HELP}

    def add(self, name: str, labels: str, value: float) -> None:
        self._lines[name].append(f"{name}{{{labels}}} {value}" if labels else f"{name} {value}")

    def add_series(self, key: tuple[str, str], series: QueueSeries) -> None:
        queue = _labels(key)
        by_move: defaultdict[str, int] = defaultdict(int)
        ended: defaultdict[str, int] = defaultdict(int)
        for (move, status), number in series.moves.items():
            self.add("codeq_task_moves_total", f'{queue},move="{move}",status="{status}"', number)
            by_move[move] += number
            if status.is_final and move != Move.PURGE:
                ended[status] += number
        for name, move in _BY_MOVE:
            if move in by_move:
                self.add(name, queue, by_move[move])
        for final, number in ended.items():
            self.add("codeq_task_completed_total", f'{queue},status="{final}"', number)
        for status, times in series.latency.items():
            self.add_histogram("codeq_task_processing_latency_seconds", times, f'{queue},status="{status}"')

    def add_histogram(self, name: str, times: FastHistogram, labels: str) -> None:
        buckets = times.cumulative()
        lines = self._lines[name]
        lines += [f'{name}_bucket{{{labels},le="{bound}"}} {number}' for bound, number in buckets]
        lines += [f"{name}_count{{{labels}}} {buckets[-1][1]}", f"{name}_sum{{{labels}}} {times.sum_s}"]

    def add_counts(self, key: tuple[str, str], numbers: Sequence[int], age_s: float | None = None) -> None:
        queue = _labels(key)
        for index, number in zip(("ready", "delayed", "in_progress", "dlq"), numbers, strict=True):
            self.add("codeq_queue_depth", f'{queue},queue="{index}"', number)
        self.add("codeq_dlq_depth", queue, numbers[3])
        if age_s is not None:
            self.add("codeq_oldest_pending_age_seconds", queue, age_s)

    def encoded(self) -> bytes:
        blocks = []
        for name, (kind, meaning) in _HELP.items():
            blocks.append("\n".join([f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *self._lines[name], ""]))
        return "".join(blocks).encode()


_HELP = {
    "codeq_task_created_total": ("counter", "Tasks enqueued"),
    "codeq_task_claimed_total": ("counter", "Tasks claimed by workers"),
    "codeq_task_completed_total": ("counter", "Tasks ended"),
    "codeq_lease_expired_total": ("counter", "Leases that ran out"),
    "codeq_task_moves_total": ("counter", "Moves of tasks, by name"),
    "codeq_task_processing_latency_seconds": ("histogram", "From enqueue to end"),
    "codeq_http_request_seconds": ("histogram", "Time to answer"),
    "codeq_queue_depth": ("gauge", "Tasks by index"),
    "codeq_dlq_depth": ("gauge", "Dead tasks"),
    "codeq_oldest_pending_age_seconds": ("gauge", "How long the first in line waits"),
    "codeq_queue_workers": ("gauge", "Workers heard from lately that claim from a queue with tasks; 0 if nobody does"),
    "codeq_scrape_truncated": ("gauge", "1 if this scrape ran out of time: some queues are summed, or not counted"),
}
_BY_MOVE = (
    ("codeq_task_created_total", Move.ENQUEUE),
    ("codeq_task_claimed_total", Move.CLAIM),
    ("codeq_lease_expired_total", Move.EXPIRE),
)


def _labels(key: tuple[str, str]) -> str:
    tenant, command = key
    return f'tenant="{_escaped(tenant)}",command="{_escaped(command)}"'


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _numbers(counts: QueueCounts) -> tuple[int, int, int, int]:
    return counts.pending, counts.delayed, counts.in_progress, counts.dead


def _age_s(counts: QueueCounts, now_ms: int) -> float:
    return 0.0 if counts.oldest_ms is None else max(0, now_ms - counts.oldest_ms) / 1000
