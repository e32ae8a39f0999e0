"""What is logged: INFO for what happens to a task, DEBUG for looks and renewals, WARNING for what should not happen."""

import logging

import pytest
from tests.priority.conftest import ManualClock, Site


def test_every_operation_is_logged_at_its_level(
    site: Site, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "codeq.priority")
    queue = site.queue(now_ms=clock)
    queue.enqueue("a")
    queue.enqueue("a")
    queue.dequeue()
    queue.renew("a")
    queue.dequeue()
    queue.requeue_with_delay("a", 5)
    clock.advance(5)
    queue.dequeue()
    queue.release_lock("a")
    queue.dequeue()
    clock.advance(300)
    queue.dequeue()
    queue.complete("a")
    assert [(record.levelname, record.getMessage().split(" ")[0]) for record in caplog.records] == [
        ("INFO", "enqueued"),
        ("DEBUG", "task"),
        ("INFO", "dequeued"),
        ("DEBUG", "renewed"),
        ("DEBUG", "nothing"),
        ("INFO", "requeued"),
        ("INFO", "dequeued"),
        ("INFO", "released"),
        ("INFO", "dequeued"),
        ("WARNING", "recovered:"),
        ("INFO", "dequeued"),
        ("INFO", "completed"),
    ]
