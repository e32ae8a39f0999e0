"""Producers and workers that make random moves until they are stopped, while the server may be killed."""

import random
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Self

from tests.server.server_process import eventually

import codeq

SERVED = ("mail", "resize")
LATER, SLOW = "later", "slow"
"""Tasks that are still open when the load ends: delayed for an hour, or claimed for one."""
AN_HOUR_S = 3600
RETRY_S = 120
"""How long a call is retried: longer than a restart of the server takes on any machine."""

SETTINGS = {
    "store": {"shards": 2},
    "leases": {"grace_seconds": 1},
    "retry": {"max_attempts": 3, "backoff_policy": "fixed", "backoff_base_seconds": 0.4},
}
"""Leases and delays are short, so that the log stops changing soon after the last call."""


class Load:
    """One producer and one worker per client, each a thread. Used with `with`, which raises the error of a thread."""

    def __init__(self, clients: Sequence[codeq.Client], dice: random.Random) -> None:
        self.clients = clients
        self._over = threading.Event()
        self._faults: list[BaseException] = []
        parts = [(part, client, random.Random(dice.getrandbits(32))) for client in clients for part in (produce, serve)]
        self._threads = [threading.Thread(target=self._turn, args=part, daemon=True) for part in parts]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * RETRY_S)
        if self._faults and fault is None:
            raise self._faults[0]

    def _turn(
        self, part: Callable[[codeq.Client, random.Random], None], client: codeq.Client, dice: random.Random
    ) -> None:
        try:
            while not self._over.wait(dice.uniform(0, 0.5)):  # a pace that leaves the machine to Spark
                part(client, dice)
        except BaseException as fault:
            self._faults.append(fault)
            raise


def produce(client: codeq.Client, dice: random.Random) -> None:
    new_tasks = [
        codeq.NewTask(
            command=dice.choice(SERVED),
            payload=b'"%s"' % (b"x" * dice.randrange(100)),
            priority=dice.choice((0, 5, 9)),
            delay_ms=dice.choice((0, 0, 0, 200, 1500)),
            max_attempts=dice.choice((1, 2, None)),
        )
        for _ in range(dice.randint(1, 6))
    ]
    if dice.random() < 0.1:
        new_tasks += codeq.new_tasks(LATER, [1], delay=AN_HOUR_S) + codeq.new_tasks(SLOW, [1])
    made = [task for task in client.enqueue_many(new_tasks) if isinstance(task, codeq.Task)]
    if dice.random() < 0.1:
        _ignore_refusal(lambda: client.cancel(made[0].id))
    if dice.random() < 0.05:
        client.replay_dead(limit=3)
    if dice.random() < 0.05:
        client.cleanup(before=datetime.now(UTC) + timedelta(days=2), limit=5)


def serve(client: codeq.Client, dice: random.Random) -> None:
    for job in client.claim(*SERVED, limit=dice.randint(1, 9), lease=1):
        _ignore_refusal(_ending(client, job, dice))
    for job in client.claim(SLOW, lease=AN_HOUR_S):
        if dice.random() < 0.5:
            _ignore_refusal(partial(client.complete, job))


def _ending(client: codeq.Client, job: codeq.Job, dice: random.Random) -> Callable[[], object]:
    endings: list[tuple[float, Callable[[], object]]] = [
        (12, lambda: client.complete(job, {"ok": True})),
        (1, lambda: client.fail(job, f"no such file /srv/{job.id}")),
        (3, lambda: client.nack(job, f"timeout after {dice.randrange(60)} s")),
        (1, lambda: client.nack(job, "busy", delay=0)),
        (1, lambda: client.abandon(job)),
        (1, lambda: client.cancel(job.id)),
        (1, lambda: None),  # its lease expires
    ]
    return dice.choices([ending for _, ending in endings], [weight for weight, _ in endings])[0]


def _ignore_refusal(call: Callable[[], object]) -> None:
    """Ignores refusals: a call whose answer a kill has lost is made twice, or too late."""
    try:
        call()
    except codeq.errors.Unreachable:
        raise
    except codeq.CodeqError:
        pass


def finish_tasks(clients: Sequence[codeq.Client], within_s: float = 60) -> None:
    """Completes the tasks that are left, until the log does not change any more by itself."""

    def is_finished(client: codeq.Client) -> bool:
        while jobs := client.claim(*SERVED, limit=1000):
            client.complete_many(jobs)
        counts = client.queues()
        return not any(counts[name].delayed or counts[name].in_progress for name in SERVED if name in counts)

    for client in clients:
        eventually(partial(is_finished, client), within_s, every_s=0.2)
