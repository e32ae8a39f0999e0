"""A server that is killed and started again under a producer: every acknowledged task exists once."""

import signal
import threading
from pathlib import Path

import pytest
from tests.sdk.clients import token_for
from tests.server.server_process import eventually, launch

from codeq import Client, Task, new_tasks


class Producer:
    """Enqueues one by one, in batches and through a batcher, until it is told to stop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_over = threading.Event()
        self.acknowledged: list[str] = []
        self._threads = [threading.Thread(target=work) for work in (self._one_by_one, self._many, self._batched)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _one_by_one(self) -> None:
        while not self._is_over.is_set():
            self.acknowledged.append(self._client.enqueue("work", "one").id)

    def _many(self) -> None:
        while not self._is_over.is_set():
            answers = self._client.enqueue_many(new_tasks("work", ["many"] * 20))
            self.acknowledged += [answer.id for answer in answers if isinstance(answer, Task)]

    def _batched(self) -> None:
        tickets = []
        with self._client.batcher(size=10, linger=0.001) as batcher:
            while not self._is_over.wait(0.002):
                tickets.append(batcher.enqueue("work", "batched"))
        self.acknowledged += [ticket.task(0).id for ticket in tickets]


def listed(client: Client) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = client.list(limit=1000, cursor=cursor)
        found += [task.id for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_is_started_again_has_every_acknowledged_task_once(tmp_path: Path, end: signal.Signals) -> None:
    server = launch(tmp_path)
    with Client(server.base, token_for(server), retry_for=60) as client:
        producer = Producer(client)
        for _ in range(2):
            before = len(producer.acknowledged)
            eventually(lambda before=before: len(producer.acknowledged) > before + 100, 30)  # type: ignore[misc]
            server.kill() if end is signal.SIGKILL else server.stop()
            server = launch(tmp_path, port=server.port)
        before = len(producer.acknowledged)
        eventually(lambda: len(producer.acknowledged) > before + 100, 30)
        producer.stop()
        found = listed(client)
        assert len(set(found)) == len(found)
        assert sorted(producer.acknowledged) == sorted(found)
    assert server.stop() == 0
