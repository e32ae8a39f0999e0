"""The engine and a simple model run the same calls, and after each one they must agree on everything.

`CODEQ_LOCKSTEP=nightly` runs many more and longer walks. A failure prints the calls that led to it, and a
`@reproduce_failure` line that repeats it.
"""

import asyncio
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.contract.engines import ENGINES, FakeClock
from tests.contract.world import purge_each, replay_each
from tests.lockstep.model import (
    COMMANDS,
    DEFAULTS,
    LEASE_MS,
    LIMITED,
    MAX_ATTEMPTS,
    NOW,
    Failure,
    Model,
    ModelTask,
    policy_of,
)

from codeq.domain.errors import CodeqError
from codeq.domain.queue import Index, QueueKey
from codeq.domain.requests import Claim, Filter, NewTask, Outcome
from codeq.domain.task import Holder, Move, Status, Task
from codeq.store.rocksdb import pending
from codeq.usecases import abandon, cancel, enqueue, heartbeat, nack, policies, purge, queries, replay, submit, sweep
from codeq.usecases import claim as claiming
from codeq.usecases.core import make_core
from codeq.usecases.enqueue import Enqueued
from codeq.usecases.submit import Submitted
from codeq.usecases.waiters import Waiters

pytestmark = pytest.mark.slow

Answer = TypeVar("Answer")
Moved = list[tuple[Move, str]]

CALL_S_MAX = 20
"""A call that takes longer is in an endless loop."""
GRACE_MS = 3_000
TENANTS = ("acme", "other")
WORKERS = ("ann", "bob")

NACKS = {"nack": None, "nack at once": 0, "nack soon": 300}
VERBS = ("complete", "fail", *NACKS, "abandon", "heartbeat", "long heartbeat")

tenants = st.sampled_from(TENANTS)
workers = st.sampled_from(WORKERS)
commands = st.sampled_from(COMMANDS)
numbers = st.integers(0, 1_000)
"""Chooses a task: the number modulo how many there are."""
delays = st.sampled_from([0, 0, 0, 1, 700, 5_000])
new_tasks = st.builds(
    NewTask,
    command=commands,
    payload=st.sampled_from([b"1", b"[2]"]),
    priority=st.sampled_from([0, 0, 0, 4, 9]),
    delay_ms=delays,
    max_attempts=st.sampled_from([None, None, 1, 2]),
    idempotency_key=st.sampled_from([None, None, None, "k", "l"]),
)
times = st.sampled_from([0, 1, 299, 700, 1_000, 5_000, 10_000, 30_000, 60_000])
wrongs = st.sampled_from(["nothing", "older token", "other worker", "other tenant"])
results = st.sampled_from([None, b"1", b"2"])
several_verbs = st.lists(st.sampled_from(VERBS), min_size=1, max_size=5)
windows = st.sampled_from([(1024, 65_536, 16 << 20), (1, 1, 0), (2, 3, 2), (3, 7, 1000)])


class Lockstep(RuleBasedStateMachine):
    engines: Sequence[str] = ()

    @initialize(number=numbers, limits=windows, first=st.lists(new_tasks, min_size=3, max_size=9))
    def begin(self, number: int, limits: tuple[int, int, int], first: list[NewTask]) -> None:
        self.model = Model()
        self.clock = FakeClock()
        self.engine = ENGINES[self.engines[number % len(self.engines)]]
        self.folder = Path(tempfile.mkdtemp(prefix="codeq-lockstep-"))
        self.path = self.folder / "0"
        self.patch = pytest.MonkeyPatch()
        for limit, value in zip(
            ("WINDOW_TASKS_MAX", "WINDOWS_TASKS_MAX", "WINDOW_BODY_BYTES_MAX"), limits, strict=True
        ):
            self.patch.setattr(pending, limit, value)
        self.runner = asyncio.Runner()
        self.alarm = signal.signal(signal.SIGALRM, _stop)
        self.seen = dict.fromkeys(range(self.engine.shards), 0)
        self.folded: dict[str, Task] = {}
        self.histories: dict[str, list[Task]] = {}
        self.open()
        for tenant in TENANTS:
            for command in (NOW, LIMITED):
                self.run(policies.put_policy(self.core, QueueKey(tenant, command), policy_of(command)))
        self.enqueue_batch(TENANTS[0], first)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.run(self.store.close())
            self.runner.close()
            signal.signal(signal.SIGALRM, self.alarm)
            self.patch.undo()
            shutil.rmtree(self.folder)

    def open(self) -> None:
        waiters = Waiters()
        self.store = self.engine.open(self.path, self.clock, waiters, grace_ms=GRACE_MS)
        self.core = make_core(self.store, waiters, DEFAULTS, randomness=random.Random())

    def run(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        signal.alarm(CALL_S_MAX)
        try:
            return self.runner.run(call)
        finally:
            signal.alarm(0)

    def attempt(self, call: Coroutine[Any, Any, Answer]) -> Answer | CodeqError:
        try:
            return self.run(call)
        except CodeqError as refusal:
            return refusal

    def some(self, tasks: Sequence[ModelTask], number: int) -> ModelTask:
        return tasks[number % len(tasks)]

    # -- producers -----------------------------------------------------------------------------------------------

    @rule(tenant=tenants, new_task=new_tasks)
    def enqueue(self, tenant: str, new_task: NewTask) -> None:
        self.enqueue_batch(tenant, [new_task])

    @rule(tenant=tenants, batch=st.lists(new_tasks, min_size=2, max_size=9))
    def enqueue_many(self, tenant: str, batch: list[NewTask]) -> None:
        self.enqueue_batch(tenant, batch)

    def enqueue_batch(self, tenant: str, batch: list[NewTask]) -> None:
        now_ms = self.clock.now_ms
        answers = self.run(enqueue.enqueue(self.core, tenant, batch))
        assert len(answers) == len(batch)
        new: Moved = []
        for new_task, answer in zip(batch, answers, strict=True):
            holder = self.model.keys.get((tenant, new_task.idempotency_key or ""))
            if holder is not None:
                first = self.model.tasks[holder]
                is_mismatch = (first.command, first.payload) != (new_task.command, new_task.payload)
                assert isinstance(answer, Enqueued)
                assert (answer.task.id, answer.is_replay, answer.is_mismatch) == (holder, True, is_mismatch)
                continue
            assert isinstance(answer, Enqueued)
            assert not answer.is_replay
            task = ModelTask(
                answer.task.id, tenant, new_task.command, new_task.priority, new_task.payload, new_task.idempotency_key,
                new_task.max_attempts or MAX_ATTEMPTS, now_ms + new_task.delay_ms if new_task.delay_ms else 0,
            )  # fmt: skip
            self.model.tasks[task.id] = task
            if task.key is not None:
                self.model.keys[tenant, task.key] = task.id
            new.append((Move.ENQUEUE, task.id))
        moved = self.happened(new)
        for shard in self.seen:  # the changes of one shard are applied in order
            assert [m for m in moved if self.model.tasks[m[1]].shard == shard] == [
                m for m in new if self.model.tasks[m[1]].shard == shard
            ]

    # -- workers -------------------------------------------------------------------------------------------------

    def busy_tenant(self, number: int) -> str:
        """Returns a tenant that has a task to be claimed, if any has."""
        waiting = {task.tenant for task in self.model.kept() if task.status in (Status.PENDING, Status.IN_PROGRESS)}
        choice = sorted(waiting) or TENANTS
        return choice[number % len(choice)]

    @rule(number=numbers, worker=workers, lease_ms=st.sampled_from([None, 1_000]))
    def claim_all(self, number: int, worker: str, lease_ms: int | None) -> None:
        self.claim_some(self.busy_tenant(number), worker, None, limit=10, lease_ms=lease_ms)

    @rule(
        number=numbers,
        worker=workers,
        wanted=st.one_of(st.none(), st.lists(commands, min_size=1, max_size=3, unique=True)),
        limit=st.sampled_from([1, 1, 2, 3]),
        lease_ms=st.sampled_from([None, 1_000, 20_000]),
        request_id=st.sampled_from([None, "r", "s"]),
    )
    def claim(
        self,
        number: int,
        worker: str,
        wanted: list[str] | None,
        *,
        limit: int,
        lease_ms: int | None,
        request_id: str | None,
    ) -> None:
        tenant = self.busy_tenant(number)
        self.claim_some(tenant, worker, wanted, limit=limit, lease_ms=lease_ms, request_id=request_id)

    def claim_some(
        self,
        tenant: str,
        worker: str,
        wanted: list[str] | None,
        *,
        limit: int,
        lease_ms: int | None,
        request_id: str | None = None,
    ) -> None:
        now_ms = self.clock.now_ms
        claim = Claim(worker=worker, commands=wanted, limit=limit, lease_ms=lease_ms, request_id=request_id)
        deliveries = self.run(claiming.claim(self.core, tenant, claim))
        tasks = [delivery.task for delivery in deliveries]
        queues = [QueueKey(tenant, command) for command in wanted or COMMANDS]
        by_itself = self.model.promote(now_ms, queues) + self.model.expire(now_ms, queues)
        if request_id is not None and (held := self.model.asked_before(tenant, worker, request_id)):
            expected_again = [task for task in held if task.command in (wanted or COMMANDS)]
            for again in expected_again:
                again.lease_ms = max(again.lease_ms + 1, now_ms + (lease_ms or LEASE_MS))
            assert sorted((task.id, task.lease_token, task.lease_until_ms) for task in tasks) == sorted(
                (again.id, again.token, again.lease_ms) for again in expected_again
            )
            self.happened(by_itself)
            return
        self.model.requests[tenant, worker, request_id] = [(task.id, task.lease_token) for task in tasks]
        self.happened(by_itself + [(Move.CLAIM, task.id) for task in tasks], by_itself_first=len(by_itself))
        assert len(tasks) == min(limit, sum(self.model.claimable(queue) for queue in queues))
        served: dict[tuple[int, int], dict[QueueKey, int]] = {}
        for delivery in deliveries:
            task = delivery.task
            expected = self.model.tasks[task.id]
            heads = [
                head
                for queue in queues
                if self.model.room(queue) > 0 and (head := self.model.head(queue, expected.shard))
            ]
            assert expected in heads, "not the first of its queue"
            highest = max(self.model.highest(queue) for queue in queues if self.model.room(queue) > 0)
            assert expected.priority == highest, "a higher priority was passed over, in this shard or another"
            group = served.setdefault((expected.shard, expected.priority), {})
            others = [head.queue for head in heads if head.priority == expected.priority]
            assert group.get(expected.queue, 0) <= min(group.get(queue, 0) for queue in others), "not in rotation"
            group[expected.queue] = group.get(expected.queue, 0) + 1
            self.model.claim(expected, worker, now_ms, lease_ms or LEASE_MS)
            assert delivery.body.payload == expected.payload

    @precondition(lambda self: self.model.at(Index.IN_PROGRESS))
    @rule(
        number=numbers,
        verbs=st.lists(st.sampled_from(VERBS), min_size=1, max_size=5),
        token=st.booleans(),
        result=results,
    )
    def workers_call(self, number: int, verbs: list[str], *, token: bool, result: bytes | None) -> None:
        """Each call is for another task in progress, by its holder."""
        for verb in verbs:
            held = self.model.at(Index.IN_PROGRESS)
            if held:
                task = self.some(held, number)
                self.call_as(task, verb, task.tenant, Holder(task.worker or "", task.token if token else None), result)

    @precondition(lambda self: self.model.tasks)
    @rule(number=numbers, verb=st.sampled_from(VERBS), wrong=wrongs, result=results)
    def someone_calls(self, number: int, verb: str, wrong: str, result: bytes | None) -> None:
        """A call for any task, whatever its state, and mostly not by its holder."""
        task = self.some(list(self.model.tasks.values()), number)
        tenant, worker, token = task.tenant, task.worker or "ann", task.token
        match wrong:
            case "older token":
                token -= 1
            case "other worker":
                worker = "carl"
            case "other tenant":
                tenant = next(other for other in TENANTS if other != tenant)
        self.call_as(task, verb, tenant, Holder(worker, token), result)

    def call_as(self, task: ModelTask, verb: str, tenant: str, holder: Holder, result: bytes | None) -> None:
        """Makes the call, and checks that it is accepted or refused as the model says."""
        ends = {"complete": Status.COMPLETED, "fail": Status.FAILED}
        answer = self.attempt(self.call(verb, tenant, task.id, holder, result))
        if verb in ends and self.model.is_repeat(task, ends[verb], tenant, holder):
            assert isinstance(answer, Submitted)
            assert (answer.task.status, answer.result) == (ends[verb], task.result)
            self.happened([])
            return
        releases = {**dict.fromkeys(NACKS, Move.NACK), "abandon": Move.ABANDON}
        if verb in releases and self.model.is_release_repeat(task, releases[verb], tenant, holder):
            assert isinstance(answer, Task)
            assert (answer.id, answer.status) == (task.id, task.status)
            self.happened([])
            return
        refusal = self.model.refusal(task, tenant, holder)
        if refusal is not None:
            assert type(answer) is refusal
            self.happened([])
            return
        assert not isinstance(answer, CodeqError)
        now_ms = self.clock.now_ms
        match verb:
            case "heartbeat" | "long heartbeat":
                task.lease_ms = max(task.lease_ms, now_ms + (30_000 if verb == "long heartbeat" else LEASE_MS))
                self.happened([])
            case "nack" | "nack at once" | "nack soon":
                self.model.nack(task, NACKS[verb], now_ms)
                self.happened([(Move.NACK, task.id)])
            case "abandon":
                self.model.abandon(task, now_ms)
                self.happened([(Move.ABANDON, task.id)])
            case _:
                assert isinstance(answer, Submitted)
                assert answer.result == result
                self.model.submit(task, ends[verb], result, now_ms)
                self.happened([(Move(verb), task.id)])

    async def call(self, verb: str, tenant: str, task_id: str, holder: Holder, result: bytes | None) -> object:
        match verb:
            case "heartbeat" | "long heartbeat":
                extend_ms = 30_000 if verb == "long heartbeat" else None
                return await heartbeat.heartbeat(self.core, tenant, task_id, holder, extend_ms=extend_ms)
            case "nack" | "nack at once" | "nack soon":
                return await nack.nack(self.core, tenant, task_id, holder, delay_ms=NACKS[verb], reason="busy")
            case "abandon":
                return await abandon.abandon(self.core, tenant, task_id, holder)
        status = Status.COMPLETED if verb == "complete" else Status.FAILED
        error = None if verb == "complete" else "broken"
        outcome = Outcome(task_id=task_id, holder=holder, status=status, result=result, error=error)
        [answer] = await submit.submit(self.core, tenant, [outcome])
        return answer

    # -- operators -----------------------------------------------------------------------------------------------

    def operator_call(
        self,
        task: ModelTask,
        move: Move,
        call: Callable[..., Coroutine[Any, Any, list[Task | CodeqError]]],
        refusal: Failure,
    ) -> None:
        [answer] = self.run(call(self.core, task.tenant, [task.id]))
        if refusal is not None:
            assert type(answer) is refusal
            self.happened([])
        else:
            assert isinstance(answer, Task)
            self.happened([(move, task.id)])

    @precondition(lambda self: self.model.tasks)
    @rule(number=numbers, move=st.sampled_from([Move.CANCEL, Move.REPLAY, Move.PURGE]))
    def operator_calls(self, number: int, move: Move) -> None:
        fitting = self.model.kept() if move is Move.CANCEL else self.model.at(Index.DEAD) + self.model.at(Index.NONE)
        task = self.some((fitting if number % 5 else []) or list(self.model.tasks.values()), number)
        match move:
            case Move.CANCEL:
                self.operator_call(task, move, cancel.cancel, self.model.cancel(task, self.clock.now_ms))
            case Move.REPLAY:
                self.operator_call(task, move, replay_each, self.model.replay(task))
            case _:
                self.operator_call(task, move, purge_each, self.model.purge(task))

    @precondition(lambda self: self.model.at(Index.DEAD))
    @rule(tenant=tenants, command=st.one_of(st.none(), commands), again=st.booleans())
    def replay_or_purge_all_dead(self, tenant: str, command: str | None, *, again: bool) -> None:
        dead = [t for t in self.model.at(Index.DEAD) if t.tenant == tenant and command in (None, t.command)]
        call = replay.replay if again else purge.purge
        swept = self.run(call(self.core, tenant, Filter(command=command), limit=1000))
        assert (swept.matched, swept.changed) == (len(dead), len(dead))
        for task in dead:
            assert (self.model.replay(task) if again else self.model.purge(task)) is None
        self.happened([(Move.REPLAY if again else Move.PURGE, task.id) for task in dead])

    # -- time ----------------------------------------------------------------------------------------------------

    @rule(ms=times)
    def time_passes(self, ms: int) -> None:
        self.clock.pass_ms(ms)

    @rule(ms=times)
    def time_passes_and_all_is_swept(self, ms: int) -> None:
        self.clock.pass_ms(ms)
        now_ms = self.clock.now_ms
        expected = self.model.promote(now_ms) + self.model.expire(now_ms) + self.model.purge_due(now_ms)

        async def all_roles() -> int:
            moved = await sweep.promote_due(self.core)
            moved += await sweep.expire_leases(self.core)
            moved += await sweep.purge_finished(self.core)
            await self.store.flush()
            return moved

        assert self.run(all_roles()) == len(expected)
        self.happened(expected)

    @rule(how=st.sampled_from(["close", "crash", "trim"]), keep_max=st.sampled_from([0, 1, 5, 50]))
    def restart_or_trim(self, how: str, keep_max: int) -> None:
        if how == "trim":
            self.trim(keep_max, age_ms=10**12 if keep_max % 2 else 5_000)
        else:
            self.restart(crash=how == "crash")

    def trim(self, keep_max: int, *, age_ms: int) -> None:
        before_ms = self.clock.now_ms - age_ms
        firsts = {shard: self.run(self.store.events(shard, 0, 1)).first for shard in self.seen}
        self.run(self.store.trim(before_ms=before_ms, keep_max=keep_max))
        self.run(self.store.flush())
        events = [event for history in self.histories.values() for event in history]
        for shard, seen in self.seen.items():
            young = [e.version for e in events if int(e.id[-4:], 16) == shard and e.updated_ms >= before_ms]
            wanted = [version for version in young if version > seen - keep_max and version >= firsts[shard]]
            assert self.run(self.store.events(shard, 0, 1)).first <= min(wanted, default=seen + 1)

    def restart(self, *, crash: bool) -> None:
        self.run(self.store.flush())
        if crash:  # what a killed process leaves: the files as they are, not closed
            copy = self.folder / str(int(self.path.name) + 1)
            self.engine.crash(self.path, copy)
            self.run(self.store.close())
            shutil.rmtree(self.path)
            self.path = copy
        else:
            self.run(self.store.close())
        self.open()
        least_ms = self.clock.now_ms + GRACE_MS
        for task in self.model.at(Index.IN_PROGRESS):
            [stored] = self.run(self.store.get_tasks(task.tenant, [task.id]))
            assert stored is not None
            assert max(task.saved_lease_ms, least_ms) <= stored.lease_until_ms <= max(task.lease_ms, least_ms)
            task.lease_ms = task.saved_lease_ms = stored.lease_until_ms

    # -- queries -------------------------------------------------------------------------------------------------

    @rule(
        tenant=tenants,
        number=numbers,
        status=st.one_of(st.none(), st.sampled_from(Status)),
        index=st.one_of(st.none(), st.sampled_from(Index)),
        limit=st.sampled_from([1, 3, 100]),
    )
    def look(self, tenant: str, number: int, status: Status | None, index: Index | None, limit: int) -> None:
        if self.model.kept():
            self.history(self.some(self.model.kept(), number))
        self.find(tenant, status, index, limit)
        if number % 2:  # not always: it reads ahead
            self.look_at_ages(tenant)

    def history(self, task: ModelTask) -> None:
        first = self.run(self.store.events(task.shard, 0, 1)).first
        read = self.run(queries.history(self.core, task.tenant, task.id))
        whole = self.histories[task.id]
        assert read == [event for event in whole if event.version >= first]

    def find(self, tenant: str, status: Status | None, index: Index | None, limit: int) -> None:
        found: list[str] = []
        cursor: str | None = None
        while True:
            wanted = Filter(status=status, index=index)
            page = self.run(queries.find(self.core, tenant, wanted, cursor=cursor, limit=limit))
            assert len(page.tasks) <= limit
            found += [task.id for task in page.tasks]
            if (cursor := page.cursor) is None:
                break
        assert sorted(found) == sorted(
            task.id
            for task in self.model.kept()
            if task.tenant == tenant and status in (None, task.status) and index in (None, task.index)
        )

    def look_at_ages(self, tenant: str) -> None:
        counts = self.run(self.store.counts(tenant, ages=True))
        assert {key: count.oldest_ms for key, count in counts.items()} == {
            QueueKey(tenant, command): self.model.oldest_ms(QueueKey(tenant, command))
            for command in self.model.counts(tenant)
        }

    # -- after every step ----------------------------------------------------------------------------------------

    def happened(self, expected: Moved, *, by_itself_first: int = 0) -> Moved:
        """Reads the events since the last step: these moves and no others, gapless, each after the task's last one."""
        moved: Moved = []
        for shard, seen in self.seen.items():
            read = self.run(self.store.events(shard, seen + 1, 50_000))
            assert [event.version for event in read.events] == list(range(seen + 1, read.next))
            self.seen[shard] = read.next - 1
            claims = [place for place, event in enumerate(read.events) if event.move is Move.CLAIM]
            if by_itself_first and claims:
                assert claims == list(range(claims[0], len(read.events))), "a claim before what it must not overlook"
            for event in read.events:
                self.fold(event)
                moved.append((event.move, event.id))
        assert sorted(moved) == sorted(expected)
        return moved

    def fold(self, event: Task) -> None:
        before = self.folded.get(event.id)
        assert event.previous == (before.version if before else 0)
        assert event.status_before == (before.status if before else None)
        assert event.updated_ms == self.clock.now_ms
        self.histories.setdefault(event.id, []).append(event)
        if event.move is Move.PURGE:
            del self.folded[event.id]
            return
        self.folded[event.id] = event
        if event.status is Status.PENDING and not event.visible_ms:
            task = self.model.tasks[event.id]
            task.line, task.since_ms = event.version, event.updated_ms

    @invariant()
    def every_task_stands_where_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        for tenant in TENANTS:
            known = [task for task in self.model.tasks.values() if task.tenant == tenant]
            for task, stored in zip(known, self.run(self.store.get_tasks(tenant, [t.id for t in known])), strict=True):
                if task.gone:
                    assert stored is None
                    continue
                assert stored is not None
                assert (
                    stored.status, stored.attempts, stored.deliveries, stored.lease_token, stored.visible_ms,
                    stored.worker, stored.lease_until_ms, stored.is_dead, stored.max_attempts, stored.purge_ms,
                ) == (
                    task.status, task.attempts, task.deliveries, task.token, task.visible_ms,
                    task.worker, task.lease_ms, task.dead, task.max_attempts, task.purge_ms,
                )  # fmt: skip
                folded = self.folded[task.id]
                assert stored.version == folded.version, "the events do not fold to the record"
                assert (stored.status, stored.move) == (folded.status, folded.move)

    @invariant()
    def every_result_and_body_is_kept(self) -> None:
        if not hasattr(self, "model"):
            return
        for tenant in TENANTS:
            known = [task for task in self.model.kept() if task.tenant == tenant]
            for task, record in zip(
                known, self.run(self.store.get_records(tenant, [t.id for t in known])), strict=True
            ):
                assert record is not None
                assert (record.body.payload, record.body.idempotency_key) == (task.payload, task.key)
                assert record.result == task.result

    @invariant()
    def counts_are_exact(self) -> None:
        if not hasattr(self, "model"):
            return
        everywhere = self.run(self.store.counts(None))
        for tenant in TENANTS:
            counts = self.run(self.store.counts(tenant))
            assert {
                key.command: (count.pending, count.delayed, count.in_progress, count.dead)
                for key, count in counts.items()
            } == self.model.counts(tenant)
            assert counts == {key: count for key, count in everywhere.items() if key.tenant == tenant}

    @invariant()
    def usage_of_a_tenant_is_exact(self) -> None:
        """(13.21)"""
        if not hasattr(self, "model"):
            return
        for tenant in TENANTS:
            usage = self.run(self.store.tenant_usage(tenant, commands=COMMANDS))
            counts = self.model.counts(tenant)
            assert usage.tasks == sum(pending + delayed + held for pending, delayed, held, _ in counts.values())
            assert usage.commands >= counts.keys()
            assert usage.queues == len(usage.commands)
            stored = [len(task.payload) for task in self.model.kept() if task.tenant == tenant]
            assert usage.payload_bytes == sum(stored)


def _stop(*_: object) -> None:
    raise TimeoutError(f"still busy after {CALL_S_MAX} s")


class LockstepOnRocksDB(Lockstep):
    engines = ("rocksdb", "rocksdb-3-shards")


class LockstepOnRedis(Lockstep):
    engines = ("redis", "redis-3-shards", "redis-full-filters")


class LockstepOnRedisCluster(Lockstep):
    engines = ("redis-cluster",)


def _test_case(machine: type[Lockstep], examples: int) -> type[Any]:
    is_nightly = os.environ.get("CODEQ_LOCKSTEP") == "nightly"
    case: type[Any] = machine.TestCase
    case.settings = settings(
        max_examples=20 * examples if is_nightly else examples,
        stateful_step_count=120 if is_nightly else 50,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    return case


TestLockstepOnRocksDB = _test_case(LockstepOnRocksDB, 30)
TestLockstepOnRedis = _test_case(LockstepOnRedis, 40)
TestLockstepOnRedisCluster = _test_case(LockstepOnRedisCluster, 15)
