"""Which queues have metrics of their own: the busiest. The others are counted together, as tenant and command `other`.

A move is counted once, in the series that its queue has at that time. So no counter goes down when a queue gets a
series or loses it, and the sum over all series rises by one with every move.
"""

from collections import OrderedDict, defaultdict
from heapq import heappush, heappushpop

from codeq.domain.queue import QueueKey
from codeq.domain.task import Move, Status
from codeq.server.histogram import FastHistogram

LATENCY_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
OTHER = QueueKey("other", "other")
CANDIDATES_MAX = 4096
"""Queues without a series whose moves are counted for the next ranking: the first to move since the last one."""

HIDDEN_PER_SHOWN = 4
"""How many series that lost their place are kept for each that is shown, at about 2 KB each."""


class QueueSeries:
    """The counters of one queue, or of all that have none of their own."""

    __slots__ = ("_ranked_moves", "latency", "moves", "recent_moves")

    def __init__(self) -> None:
        self.moves: defaultdict[tuple[Move, Status], int] = defaultdict(int)
        self.latency: defaultdict[Status, FastHistogram] = defaultdict(lambda: FastHistogram(LATENCY_BUCKETS_S))
        self.recent_moves = 0
        """Moves since the last ranking, plus half of those of the ranking before, and so on."""
        self._ranked_moves = 0

    def age(self) -> None:
        total = sum(self.moves.values())
        self.recent_moves = self.recent_moves // 2 + total - self._ranked_moves
        self._ranked_moves = total


class QueueSeriesTable:
    """The series of up to `queues_max` queues, and the one of all others. Bounded, however many queues there are."""

    def __init__(self, queues_max: int) -> None:
        self._max = queues_max
        self.shown: dict[tuple[str, str], QueueSeries] = {}
        self.other = QueueSeries()
        self._hidden: OrderedDict[tuple[str, str], QueueSeries] = OrderedDict()
        """Series that lost their place, to go on from their values. The oldest are dropped, and would begin at 0, which
        Prometheus takes for a restart."""
        self._moves: dict[tuple[str, str], int] = {}

    def of(self, tenant: str, command: str) -> QueueSeries:
        """Returns the series in which a move of the queue is counted."""
        key = (tenant, command)
        series = self.shown.get(key)
        if series is not None:
            return series
        if len(self.shown) < self._max and key != OTHER:
            return self._show(key)
        if key in self._moves or len(self._moves) < CANDIDATES_MAX:
            self._moves[key] = self._moves.get(key, 0) + 1
        return self.other

    def ranking(self) -> "Ranking":
        return Ranking(self._max, self._moves)

    def rank(self, ranking: "Ranking") -> None:
        """Gives the places of the quietest queues to those that were busier since the last ranking."""
        scores = {}
        for key, series in self.shown.items():
            series.age()
            scores[key] = series.recent_moves + ranking.sizes.get(key, 0)
        for quiet, (score, key) in zip(sorted(scores, key=scores.__getitem__), ranking.busiest(), strict=False):
            if score <= scores[quiet]:
                break
            self._hidden[quiet] = self.shown.pop(quiet)
            self._show(key)
        while len(self._hidden) > HIDDEN_PER_SHOWN * self._max:
            self._hidden.popitem(last=False)
        self._moves = {}

    def _show(self, key: tuple[str, str]) -> QueueSeries:
        series = self.shown[key] = self._hidden.pop(key) if key in self._hidden else QueueSeries()
        return series


class Ranking:
    """Collects how busy queues are: by their moves since the last ranking, and by the tasks that they hold."""

    def __init__(self, places: int, moves: dict[tuple[str, str], int]) -> None:
        self._places = places
        self._moves = moves
        self._best: list[tuple[int, tuple[str, str]]] = []
        self._seen: set[tuple[str, str]] = {OTHER}
        self.sizes: dict[tuple[str, str], int] = {}
        """The tasks of queues that have a series."""

    def add(self, key: tuple[str, str], size: int) -> None:
        """Adds a queue that has no series and holds `size` tasks."""
        moves = self._moves.get(key, 0)
        if moves:
            self._seen.add(key)
        if key != OTHER:
            self._push((moves + size, key))

    def busiest(self) -> list[tuple[int, tuple[str, str]]]:
        """Returns scores and names of the busiest queues that have no series, the busiest first."""
        for key, moves in self._moves.items():
            if key not in self._seen:
                self._push((moves, key))
        return sorted(self._best, reverse=True)

    def _push(self, scored: tuple[int, tuple[str, str]]) -> None:
        if len(self._best) < self._places:
            heappush(self._best, scored)
        else:
            heappushpop(self._best, scored)
