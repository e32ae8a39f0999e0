"""The outbox, the claims and the retries, step by step, on a real Redis that is stopped, emptied and started again."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from examples.code_review.database import ATTEMPTS_MAX, Database
from examples.code_review.git_changes import Change
from examples.code_review.queues import Claim, ClaimLost, CodeqQueue, QueueDown, RedisQueue
from examples.code_review.relay import Relay
from examples.code_review.reviewers import Reviewer
from examples.code_review.reviews import Due, Finding, Kind, Priority, Review, ReviewRequest, Status, now_ms
from examples.code_review.settings import read_settings
from examples.code_review.worker import NOT_YET_ATTEMPTS_MAX, Worker
from tests.examples.review_application import REPOSITORY, Changes, expected_finding
from tests.redis_servers import RedisNode, start_node
from tests.server.server_process import start_server

import codeq
from codeq.wire.local_server import DEV_TOKEN

LOCK_S = 1.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisNode]:
    with start_node(tmp_path / "redis", appendonly="yes", appendfsync="always") as node:
        yield node


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "reviews.sqlite")


def request(number: int = 1, *, kind: Kind = Kind.PUSH, head: str = "a" * 40, base: str = "b" * 40) -> ReviewRequest:
    return ReviewRequest(
        provider="github", delivery=f"delivery-{number}", kind=kind, repository=REPOSITORY, subject=f"{kind} {number}",
        base=base, head=head, title=f"Change {number}", author="ada", url="",
    )  # fmt: skip


class Bench:
    """The parts of the application in one process, without the loops around them."""

    def __init__(self, folder: Path, database: Database, queue: RedisQueue) -> None:
        settings = read_settings({"CODE_REVIEW_DATA": str(folder), "CODE_REVIEW_LOCK_SECONDS": str(LOCK_S)})
        self.settings = msgspec.structs.replace(settings, retry_s=0.0, offer_again_s=0.0)
        self.database = database
        self.queue = queue
        self.relay = Relay(database, queue, offer_again_s=600)

    async def claim(self) -> Claim:
        claim = await self.queue.claim(10)
        assert claim is not None
        return claim

    async def work(self, *reviewers: Reviewer) -> None:
        """Claims one review, and does it."""
        worker = Worker(self.settings, self.database, self.queue, reviewers=reviewers or None)
        await worker.review(await self.claim())

    def begin(self, claim: Claim) -> Review | None:
        return self.database.begin(claim.review_id, claim.fencing, now_ms())

    def status(self, review_id: int = 1) -> Status:
        found = self.database.review(review_id)
        assert found is not None
        return found[0].status


def on_bench(tmp_path: Path, database: Database, redis: RedisNode, steps: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        queue = RedisQueue(redis.url, lock_s=LOCK_S)
        try:
            await steps(Bench(tmp_path, database, queue))
        finally:
            await queue.close()

    asyncio.run(run())


def rows(database: Database, table: str) -> int:
    with database.transaction(writes=False) as tx:
        return int(tx.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_a_transaction_that_is_rolled_back_leaves_neither_a_review_nor_anything_to_offer(database: Database) -> None:
    with database.transaction() as tx:
        tx.execute("CREATE TRIGGER full BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(sqlite3.IntegrityError, match="disk full"):
        database.record(request(), now_ms())
    assert (rows(database, "reviews"), rows(database, "outbox")) == (0, 0)
    with database.transaction() as tx:
        tx.execute("DROP TRIGGER full")
    assert database.record(request(), now_ms()) == (1, True)
    assert (rows(database, "reviews"), rows(database, "outbox")) == (1, 1)


def test_a_commit_is_on_disk_before_the_sender_hears_of_it(database: Database) -> None:
    with database.transaction() as tx:
        assert tx.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert tx.execute("PRAGMA synchronous").fetchone()[0] == 2, "FULL"


def test_the_most_urgent_reviews_are_offered_first(database: Database) -> None:
    for number, kind in enumerate([Kind.PUSH, Kind.PULL, Kind.PUSH, Kind.PULL]):
        database.record(request(number, kind=kind), 1000 + number)
    assert [due.review_id for due in database.due(5000)] == [2, 4, 1, 3]
    assert [due.review_id for due in database.due(1001)] == [2, 1]


def test_a_relay_that_dies_after_the_offer_offers_again_and_the_queue_has_the_review_once(
    tmp_path: Path, database: Database, redis: RedisNode
) -> None:
    database.record(request(), now_ms())

    async def steps(bench: Bench) -> None:
        assert await bench.queue.offer(1, Priority.NORMAL)  # and dies before it notes that
        await bench.relay.offer_due()
        assert (await bench.claim()).review_id == 1
        assert await bench.queue.claim(0) is None
        assert database.due(now_ms()) == []

    on_bench(tmp_path, database, redis, steps)


def test_a_queue_that_is_down_keeps_reviews_in_the_outbox(tmp_path: Path, database: Database, redis: RedisNode) -> None:
    database.record(request(), now_ms())

    async def steps(bench: Bench) -> None:
        redis.stop()
        with pytest.raises(QueueDown):
            await bench.relay.offer_due()
        assert len(database.due(now_ms())) == 1
        redis.start()
        await bench.relay.offer_due()
        assert (await bench.claim()).review_id == 1

    on_bench(tmp_path, database, redis, steps)


def test_a_queue_that_lost_everything_gets_it_again_and_late_claims_are_void(
    tmp_path: Path, database: Database, redis: RedisNode
) -> None:
    for number in range(3):
        database.record(request(number), now_ms())

    async def steps(bench: Bench) -> None:
        await bench.relay.offer_due()
        begun = [bench.begin(await bench.claim()) for _ in range(3)]
        redis.command("FLUSHALL")  # the count of claims is lost with the rest, and starts again at 1
        with database.transaction() as tx:
            tx.execute("UPDATE outbox SET due_ms = 0")  # the time to offer again has come
        await bench.relay.offer_due()
        late = begun[2]
        assert late is not None
        assert not database.store(late, [], now_ms())
        for _ in range(3):
            claim = await bench.claim()
            again = bench.begin(claim)
            assert again is not None, "a claim of the new count is accepted"
            assert database.store(again, [Finding("a.py", 1, "x", "y")], now_ms())
            await bench.queue.finish(claim)

    on_bench(tmp_path, database, redis, steps)
    assert (rows(database, "findings"), rows(database, "outbox")) == (3, 0)


def test_an_offer_that_the_queue_already_has_does_not_disturb_the_worker(database: Database) -> None:
    database.record(request(), 1)
    review = database.begin(1, 5, 2)
    assert review is not None
    database.offered(Due(1, Priority.NORMAL, 1), 1000, is_new=False)
    database.offered(Due(1, Priority.NORMAL, 0), 1000, is_new=True)  # the first offer, noted after the claim
    assert database.store(review, [], 3)


def test_a_late_worker_cannot_store_and_nobody_stores_twice(database: Database) -> None:
    database.record(request(), 1)
    late, current = database.begin(1, 7, 2), database.begin(1, 9, 3)
    assert late is not None
    assert current is not None
    assert database.begin(1, 8, 4) is None, "a claim between the two comes too late"
    found = [Finding("a.py", 1, "F401", "unused")]
    assert not database.store(late, found, 5)
    assert database.store(current, found, 6)
    assert not database.store(current, found, 7)
    assert database.put_back(late, "late", now_ms=8, again_ms=9) is Status.DONE
    assert database.begin(1, 10, 11) is None
    assert (rows(database, "findings"), rows(database, "outbox")) == (1, 0)


def test_a_review_whose_workers_die_every_time_ends_as_failed(database: Database) -> None:
    review_id, _ = database.record(request(), now_ms())
    for fencing in range(1, ATTEMPTS_MAX + 1):
        assert database.begin(review_id, fencing, now_ms()) is not None
    assert database.begin(review_id, ATTEMPTS_MAX + 1, now_ms()) is None
    [review] = database.reviews()
    assert (review.status, review.error) == (Status.FAILED, "its worker ended in the middle of try 5")
    assert database.due(now_ms() + 10**9) == []


def test_a_review_waits_for_its_commits_longer_than_for_a_reviewer_that_fails(database: Database) -> None:
    review_id, _ = database.record(request(), now_ms())
    for fencing in range(1, ATTEMPTS_MAX + 3):
        review = database.begin(review_id, fencing, now_ms())
        assert review is not None
        patient = database.put_back(
            review, "not yet", now_ms=now_ms(), again_ms=now_ms(), attempts_max=NOT_YET_ATTEMPTS_MAX
        )
        assert patient is Status.WAITING
    last = database.begin(review_id, ATTEMPTS_MAX + 3, now_ms())
    assert last is not None
    assert database.put_back(last, "broken", now_ms=now_ms(), again_ms=now_ms()) is Status.FAILED


def test_a_worker_that_dies_before_it_stores_is_replaced_and_its_claim_is_lost(
    tmp_path: Path, database: Database, redis: RedisNode
) -> None:
    database.record(request(), now_ms())

    async def steps(bench: Bench) -> None:
        await bench.relay.offer_due()
        dead = await bench.claim()
        assert bench.begin(dead) is not None
        heir = await bench.claim()  # waits until the lock of the first has expired
        review = bench.begin(heir)
        assert review is not None
        assert (heir.review_id, review.attempts) == (1, 2)
        assert heir.fencing > dead.fencing
        for verb in (bench.queue.renew, bench.queue.finish):
            with pytest.raises(ClaimLost):
                await verb(dead)

    on_bench(tmp_path, database, redis, steps)


def test_a_worker_that_dies_between_database_and_queue_leaves_nothing_to_do(
    tmp_path: Path, database: Database, redis: RedisNode
) -> None:
    database.record(request(), now_ms())

    async def steps(bench: Bench) -> None:
        await bench.relay.offer_due()
        review = bench.begin(await bench.claim())
        assert review is not None
        assert database.store(review, [Finding("a.py", 1, "x", "y")], now_ms())  # and dies before it finishes the claim
        await bench.work(Forbidden())
        assert await bench.queue.claim(1) is None

    on_bench(tmp_path, database, redis, steps)
    assert rows(database, "findings") == 1


class Forbidden:
    """A reviewer that must not be asked."""

    def review(self, change: Change) -> Sequence[Finding]:
        raise AssertionError(f"{change.title} was reviewed again")


class Broken:
    """A reviewer that fails."""

    def review(self, change: Change) -> Sequence[Finding]:
        raise RuntimeError(f"the model is too busy for {len(change.files)} file")


def test_a_try_that_fails_while_the_queue_is_down_is_tried_again(
    tmp_path: Path, database: Database, redis: RedisNode
) -> None:
    changes = Changes(tmp_path / "repositories")
    commits = changes.push(1)
    database.record(request(head=commits.head, base=commits.base), now_ms())

    async def steps(bench: Bench) -> None:
        await bench.relay.offer_due()
        claim = await bench.claim()
        redis.stop()
        worker = Worker(bench.settings, database, bench.queue, reviewers=[Broken()])
        with pytest.raises(QueueDown):
            await worker.review(claim)
        assert bench.status() is Status.WAITING
        redis.start()
        await bench.relay.offer_due()
        await bench.work()

    on_bench(tmp_path, database, redis, steps)
    found = database.review(1)
    assert found is not None
    assert (found[0].status, found[0].attempts, found[1]) == (Status.DONE, 2, [expected_finding(1)])


def test_a_review_whose_commit_arrives_later_is_tried_again(
    tmp_path: Path, database: Database, redis: RedisNode
) -> None:
    changes = Changes(tmp_path / "repositories")
    commits = changes.pull(1)
    elsewhere = Changes(tmp_path / "elsewhere")
    later = elsewhere.pull(2)
    database.record(request(kind=Kind.PULL, head=later.head, base=commits.base), now_ms())

    async def steps(bench: Bench) -> None:
        await bench.relay.offer_due()
        await bench.work()
        assert bench.status() is Status.WAITING
        changes.git.git("fetch", "--quiet", str(elsewhere.git.folder), "pull-2")
        await bench.work()
        assert bench.status() is Status.DONE

    on_bench(tmp_path, database, redis, steps)


def test_a_review_that_fails_every_time_ends_as_failed_with_the_reason(
    tmp_path: Path, database: Database, redis: RedisNode
) -> None:
    commits = Changes(tmp_path / "repositories").push(1)
    database.record(request(head=commits.head, base=commits.base), now_ms())

    async def steps(bench: Bench) -> None:
        await bench.relay.offer_due()
        for _ in range(ATTEMPTS_MAX):
            assert bench.status() is Status.WAITING
            await bench.work(Broken())
        assert bench.status() is Status.FAILED
        assert await bench.queue.claim(0) is None

    on_bench(tmp_path, database, redis, steps)
    found = database.review(1)
    assert found is not None
    assert (found[0].error, found[0].attempts) == ("the model is too busy for 1 file", ATTEMPTS_MAX)
    assert rows(database, "outbox") == 0


def test_a_review_that_cannot_be_done_is_not_tried_again(tmp_path: Path, database: Database, redis: RedisNode) -> None:
    database.record(request(), now_ms())

    async def steps(bench: Bench) -> None:
        await bench.relay.offer_due()
        await bench.work()
        assert bench.status() is Status.FAILED

    on_bench(tmp_path, database, redis, steps)
    found = database.review(1)
    assert found is not None
    assert "no repository acme/shop" in found[0].error


def test_a_review_that_takes_longer_than_the_lock_keeps_it(
    tmp_path: Path, database: Database, redis: RedisNode
) -> None:
    """The reviewer goes on only once its lock was renewed three times."""
    commits = Changes(tmp_path / "repositories").push(1)
    database.record(request(head=commits.head, base=commits.base), now_ms())

    class Slow:
        def review(self, change: Change) -> Sequence[Finding]:
            renewals, left_ms = 0, 0
            while renewals < 3:
                before_ms, left_ms = left_ms, redis.command("PTTL", "codereview:task:lock:1")
                assert left_ms > 0
                renewals += left_ms > before_ms > 0
            return [Finding(change.files[0].path, 1, "slow", "but safe")]

    async def steps(bench: Bench) -> None:
        await bench.relay.offer_due()
        await bench.work(Slow())

    on_bench(tmp_path, database, redis, steps)
    found = database.review(1)
    assert found is not None
    assert (found[0].status, found[0].attempts) == (Status.DONE, 1)


def test_a_review_that_codeq_gave_up_is_offered_again_and_keeps_counting_its_claims(tmp_path: Path) -> None:
    """Dead letters of the queue are not the end of a review: the database alone decides that."""

    async def steps(url: str) -> None:
        async with codeq.AsyncClient(url, DEV_TOKEN) as client:
            queue = CodeqQueue(url, lock_s=30, token=DEV_TOKEN)
            assert await queue.offer(1, Priority.HIGH)
            assert not await queue.offer(1, Priority.HIGH)
            first = await queue.claim(10)
            assert first is not None
            await client.nack(first.handle, "an operator did this", dead=True)
            assert await queue.claim(0) is None
            assert not await queue.offer(1, Priority.HIGH)
            second = await queue.claim(10)
            assert second is not None
            assert (second.review_id, second.fencing) == (1, first.fencing + 1)
            await queue.finish(second)
            await queue.close()

    with start_server(tmp_path) as server:
        asyncio.run(steps(server.base))


def test_codeq_delivers_pull_requests_before_pushes(tmp_path: Path) -> None:
    async def steps(url: str) -> list[int]:
        queue = CodeqQueue(url, lock_s=30, token=DEV_TOKEN)
        for number, priority in enumerate([Priority.NORMAL, Priority.HIGH, Priority.NORMAL, Priority.HIGH]):
            await queue.offer(number, priority)
        claims = [await queue.claim(10) for _ in range(4)]
        await queue.close()
        return [claim.review_id for claim in claims if claim]

    with start_server(tmp_path) as server:
        assert asyncio.run(steps(server.base)) == [1, 3, 0, 2]


@pytest.mark.parametrize("member", ["abc", "9" * 30])
def test_a_member_of_the_queue_that_is_no_review_is_removed_and_ends_no_worker(redis: RedisNode, member: str) -> None:
    async def steps() -> None:
        queue = RedisQueue(redis.url, lock_s=LOCK_S)
        redis.command("ZADD", "codereview:task:queue", 50 * 10**13, member)
        assert await queue.claim(0) is None
        assert redis.command("EXISTS", "codereview:task:queue", "codereview:task:in-flight") == 0
        await queue.offer(1, Priority.NORMAL)
        claim = await queue.claim(0)
        assert claim is not None
        await queue.close()

    asyncio.run(steps())
