"""What happens, and when: each act is a coroutine on the stage. A further act is one more line in `ACTS`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic, time_ns
from typing import NamedTuple

from codeq.demo import producers
from codeq.demo.environment import COMMANDS, Hire, Stage
from codeq.demo.ledger import End
from codeq.demo.processes import until
from codeq.domain.errors import AlreadyFinal
from codeq.domain.task import Status

HIRES = (
    Hire("worker-1", "acme"),
    Hire("worker-2", "acme"),
    Hire("worker-3", "globex"),
    Hire("worker-4", "globex", slow=True),
    Hire("worker-5", "initech"),
)
RUSH = (("acme", "send_receipt"), ("globex", "make_thumbnail"), ("initech", "import_row"))
PATIENCE_S = 20.0
OUTAGE_S = 0.7


class Act(NamedTuple):
    name: str
    at: float
    """Not before this share of the time has passed."""
    play: Callable[[Stage], Awaitable[None]]


async def kill_a_worker(stage: Stage) -> None:
    """In the middle of its work: its leases run out, and others get its tasks."""
    victim = stage.crew["worker-2"][1]
    work = [producers.order("acme", "send_receipt", 500_000 + n, work_s=0.4, priority=5) for n in range(60)]
    await producers.send_many(stage, "acme", work)
    await until(lambda: stage.board.held["worker-2"] >= 4, PATIENCE_S)
    victim.kill()
    stage.kills.append("worker-2")
    held = await _settled_count(stage, "worker-2")
    stage.note(f"kill -9 worker-2 (held {held} tasks)", "red")
    stage.hire(Hire("worker-6", "acme"))
    stage.note("worker-6 hired in its place")
    if held and await until(lambda: stage.board.held["worker-2"] == 0, PATIENCE_S):
        stage.note(f"the leases of worker-2 ran out: {held} tasks handed to others", "green")


async def change_their_minds(stage: Stage) -> None:
    """Cancel tasks that wait for tomorrow, and one that is being worked on right now."""
    studio, shop = stage.tenants["globex"].producer, stage.tenants["acme"].producer
    tomorrow = [producers.order("acme", "send_receipt", 600_000 + n, delay_ms=86_400_000) for n in range(25)]
    film = producers.order("globex", "render_video", 600_000, work_s=60.0, priority=9)
    await producers.send_many(stage, "acme", tomorrow)
    await producers.send_many(stage, "globex", [film])
    planned = {one.task.idempotency_key for one in (*tomorrow, film)}
    receipts = [one for one in stage.ledger.receipts if one.order.task.idempotency_key in planned]
    for receipt in receipts:
        client = shop if receipt.tenant == "acme" else studio
        if receipt.tenant == "globex":
            await _until_running(stage, receipt.task_id)
        with suppress(AlreadyFinal):  # by a call whose answer was lost, unless the audit finds otherwise
            await client.cancel(receipt.task_id)
        stage.ledger.expect(receipt.task_id, End.CANCELLED)
    stage.note(
        f"{len(receipts)} tasks cancelled: {len(tomorrow)} due tomorrow, one in the middle of its work", "yellow"
    )


async def kill_the_server(stage: Stage) -> None:
    """Under load, and start it again: same data, same port. Producers and workers find it by themselves."""
    open_tasks, answered = stage.board.open_tasks, len(stage.ledger.receipts)
    began_s = monotonic()
    stage.server.kill()
    stage.kills.append("server")
    stage.note(f"kill -9 server ({answered} tasks acknowledged, {open_tasks} open)", "red bold")
    await asyncio.sleep(OUTAGE_S)
    await stage.server.serve()
    stage.downtime_s = monotonic() - began_s
    stage.note(f"server back after {stage.downtime_s:.1f} s on the same data; callers recover by themselves", "green")
    counts = [await producers.send_again(stage, tenant, 20) for tenant in stage.tenants]
    sent, same = (sum(numbers) for numbers in zip(*counts, strict=True))
    stage.note(f"{sent} orders from before the crash sent again: {same} gave the task they had made")


async def mend_and_replay(stage: Stage) -> None:
    """Look at the dead letters, deploy the release that mends them, and play them again."""
    queue = "initech", "file_report"
    admin = stage.tenants["initech"].admin
    await until(lambda: stage.board.queues[queue]["dead"] > 0, PATIENCE_S)
    dead = (await admin.list(command="file_report", dead=True, limit=1000)).tasks
    reason = (dead[0].last_error or "").partition(" (at")[0] if dead else "nothing"
    stage.note(f"{len(dead)} dead letters of file_report: {reason}", "yellow")
    await stage.crew["worker-5"][1].stop()
    stage.hire(Hire("worker-7", "initech", release=2))
    stage.note("worker-5 stopped in peace; worker-7 brings release 2")
    swept = await admin.replay_dead("file_report")
    stage.note(f"{swept.changed} dead letters replayed", "green")


async def rush_hour(stage: Stage) -> None:
    """Everything that is left, at once."""
    await asyncio.gather(*stage.producers)
    planned = max(0, stage.tasks - len(stage.ledger.receipts))
    shares = [(planned + place) // len(RUSH) for place in range(len(RUSH))]
    stage.note(f"rush hour: {planned:,} tasks at once", "cyan")
    began_s = monotonic()
    stage.rush_at_ms = time_ns() // 1_000_000
    await asyncio.gather(*[producers.rush(stage, *queue, share) for queue, share in zip(RUSH, shares, strict=True)])
    taken_s = monotonic() - began_s
    stage.note(f"all taken in and on disk within {taken_s:.1f} s ({planned / max(taken_s, 0.001):,.0f} tasks/s)")


async def drain(stage: Stage) -> None:
    """Until every acknowledged task has ended. The deadline of the whole show bounds it."""
    admin = stage.tenants["initech"].admin
    await asyncio.gather(*stage.producers)
    while stage.board.ended_tasks < len(stage.ledger.receipts) or stage.board.open_tasks:
        await asyncio.sleep(0.1)
        if stage.board.queues["initech", "file_report"]["dead"]:  # a machine so slow that its leases ran out
            await admin.replay_dead("file_report")
    stage.note("every task has ended", "green")


ACTS = (
    Act("a worker is killed", 0.15, kill_a_worker),
    Act("customers change their minds", 0.32, change_their_minds),
    Act("the server is killed", 0.45, kill_the_server),
    Act("dead letters are mended", 0.62, mend_and_replay),
    Act("rush hour", 0.78, rush_hour),
    Act("the last tasks", 0.8, drain),
)


async def _settled_count(stage: Stage, worker: str) -> int:
    """How many tasks a worker that is gone holds, once its last answers have reached the board."""
    await asyncio.sleep(0.5)
    return stage.board.held[worker]


async def _until_running(stage: Stage, task_id: str) -> None:
    client = stage.tenants["globex"].producer
    deadline_s = monotonic() + PATIENCE_S
    while monotonic() < deadline_s:
        if (await client.get(task_id)).task.status is not Status.PENDING:
            return
        await asyncio.sleep(0.1)


def planned_tasks(tasks: int) -> int:
    """At least enough for every act to have something to do."""
    return max(tasks, 300 * len(COMMANDS))
