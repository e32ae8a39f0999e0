"""Heartbeats from the event loop: what is sent, and when."""

import asyncio
from typing import Any, cast

from codeq.domain.task import Holder
from codeq.sdk.backend import Backend
from codeq.sdk.jobs import Job
from codeq.sdk.worker.heartbeat import LoopHeartbeater


class Recorder:
    """The one verb of a backend that a heartbeater calls."""

    def __init__(self) -> None:
        self.sent: list[str | None] = []

    async def heartbeat(self, _job: Job, _extend_ms: int | None, progress: str | None = None) -> int:
        self.sent.append(progress)
        return 0


def test_progress_is_sent_at_once_and_then_at_most_once_a_second() -> None:
    async def story() -> list[str | None]:
        recorder = Recorder()
        heartbeater = LoopHeartbeater(cast("Backend", cast("Any", recorder)), {"work": 60_000}, lambda *_: None)
        job = Job("id", "work", b"null", Holder("ann", 1))
        heartbeater.hold([job])
        for text in ("10%", "20%", "30%"):
            heartbeater.report({job.key: text})
            await asyncio.sleep(0.01)
        await heartbeater.close()
        return recorder.sent

    assert asyncio.run(story()) == ["10%"]
