"""Servers on Redis when servers, Redis or the way to it fail: nothing acknowledged is lost, nothing ends twice."""

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.contract.engines import FakeClock
from tests.priority.reply_losing_proxy import ReplyLosingProxy
from tests.redis_servers import RedisClusterNodes, RedisNode, in_step, start_cluster, start_node, start_pair, wait_until
from tests.server.server_process import Server, answered, at, eventually, refused, run_codeq, waiting
from tests.system import redis_kills
from tests.system.redis_audit import faults_of, read_shard
from tests.system.redis_kills import DURABLE, REPLICATED
from tests.system.redis_load import LARGE, RedisLoad, serve

from codeq import Client
from codeq.domain.errors import CodeqError, StoreUnavailable
from codeq.domain.queue import QueuePolicy
from codeq.domain.requests import Claim, NewTask, Outcome
from codeq.domain.task import Holder, Move, Status
from codeq.sdk.tasks import record_of
from codeq.store.redis.faults import OutOfMemory
from codeq.store.redis.opening import RedisOptions, open_redis
from codeq.usecases import claim, enqueue, submit, sweep
from codeq.usecases.core import make_core
from codeq.usecases.waiters import Waiters
from codeq.wire import paths
from codeq.wire.local_server import DEV_TOKEN

pytestmark = pytest.mark.slow
SHARDS = 3


def assert_exactly_once(load: RedisLoad, client: "redis.Redis | redis.RedisCluster", shards: int = 1) -> None:
    """Every acknowledged task has ended once, and all that is stored is consistent."""
    assert_clean(redis_kills.judge(load, client, shards=shards))


def assert_clean(verdict: redis_kills.Verdict) -> None:
    assert verdict.faults == []
    print(verdict.text)  # noqa: T201


# -- servers -------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_servers_that_are_killed_again_and_again_lose_no_task_and_end_none_twice(tmp_path: Path) -> None:
    assert_clean(redis_kills.kill_servers(tmp_path, seconds=15, every_s=1, workers=3))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("pair")
    with start_node(folder / "redis") as node, ExitStack() as servers:
        a, b = (servers.enter_context(serve(folder, node.url, name=name)) for name in "ab")
        yield a, b


def test_a_claim_that_waits_on_one_server_gets_a_task_of_another(pair: tuple[Server, Server]) -> None:
    here, there = pair[0].tenant("claims"), pair[1].tenant("claims")
    with waiting(here.worker, "POST", paths.CLAIM, {"commands": ["work"], "waitSeconds": 20}) as claim:
        made = there.create()
        assert answered(claim.result(10), 200)["id"] == made["id"]


def test_a_result_that_is_submitted_on_another_server_is_waited_for(pair: tuple[Server, Server]) -> None:
    here, there = pair[0].tenant("results"), pair[1].tenant("results")
    task = there.held()
    with waiting(here.producer, "GET", at(paths.RESULT, task["id"]), params={"waitSeconds": 30}) as result:
        answered(there.worker.post(at(paths.RESULT, task["id"]), {"status": "COMPLETED", "result": 7}), 200)
        assert answered(result.result(10), 200)["result"]["result"] == 7


def test_a_policy_of_another_server_is_in_force_within_a_second(pair: tuple[Server, Server]) -> None:
    here, there = pair[0].tenant("policies"), pair[1].tenant("policies")
    answered(there.admin.put(at(paths.TOPIC, "work"), {"policy": {"maxAttempts": 2}}), 201)
    eventually(lambda: here.create()["maxAttempts"] == 2, 1.5)


def test_a_reader_of_events_hears_of_those_of_another_server(pair: tuple[Server, Server]) -> None:
    here, there = pair[0].tenant("readers"), pair[1].tenant("readers")
    end = answered(here.admin.get(paths.EVENTS), 200)["endOffset"]
    with waiting(here.admin, "GET", paths.EVENTS, params={"offset": end, "waitSeconds": 20}) as events:
        made = there.create()
        assert made["id"] in events.result(10).text


# -- Redis -----------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_redis_killed_again_and_again_loses_nothing_and_servers_go_on_by_themselves(tmp_path: Path) -> None:
    assert_clean(redis_kills.kill_redis(tmp_path, kills=4, workers=3))


def test_leases_that_ended_while_redis_was_down_get_their_grace_from_servers_that_ran_on(tmp_path: Path) -> None:
    async def story(node: RedisNode) -> None:
        clock, waiters = FakeClock(), Waiters()
        wanted = RedisOptions(grace_ms=10_000)
        store = open_redis(node.url, wanted, process="a", clock=clock, listeners=[waiters])
        core = make_core(store, waiters, QueuePolicy(), randomness=random.Random(1))
        [made] = await enqueue.enqueue(core, "acme", [NewTask(command="work", payload=b"1")])
        assert not isinstance(made, CodeqError)
        await claim.claim(core, "acme", Claim(worker="ann", commands=("work",), lease_ms=1000))
        node.kill()
        clock.pass_ms(5_000)
        node.start()
        await sweep.expire_leases(core)
        [task] = await store.get_tasks("acme", [made.task.id])
        assert task is not None
        assert (task.status, task.lease_until_ms) == (Status.IN_PROGRESS, clock() + 10_000)
        clock.pass_ms(10_000)
        await sweep.expire_leases(core)
        [task] = await store.get_tasks("acme", [made.task.id])
        assert task is not None
        assert task.move is Move.EXPIRE
        await store.close()

    with start_node(tmp_path / "redis", **DURABLE) as node:
        asyncio.run(story(node))


# -- a cluster -------------------------------------------------------------------------------------------------------


def cluster_url(cluster: RedisClusterNodes) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)


@pytest.mark.cluster
def test_a_cluster_whose_scripts_are_flushed_slots_move_and_a_master_dies_loses_nothing(tmp_path: Path) -> None:
    with (
        start_cluster(tmp_path / "redis", masters=3, replicas=True) as cluster,
        serve(tmp_path, cluster_url(cluster), store={"shards": SHARDS}) as server,
    ):
        with RedisLoad([server]) as load:
            load.more()
            for _ in range(5):
                for node in cluster.nodes:
                    node.command("SCRIPT FLUSH")
                load.more(20)
            slot = cluster.slot("{codeq:1}")
            for _ in range(2):
                target = cluster.other(cluster.owner(slot))
                cluster.begin_move(slot, to=target)
                while cluster.move_keys(slot, to=target, at_most=3):
                    pass
                cluster.end_move(slot, to=target)
                load.more(20)
            dying = cluster.owner(cluster.slot("{codeq:0}"))
            wait_until(lambda: in_step(dying), "the replica")
            dying.kill()
            load.more(within_s=40)
        with redis.RedisCluster("127.0.0.1", cluster.replicas[cluster.nodes.index(dying)].port) as client:
            assert_exactly_once(load, client, SHARDS)
        assert server.process.poll() is None


# -- replicas --------------------------------------------------------------------------------------------------------


def test_without_its_replica_a_write_is_unknown_and_can_be_repeated(tmp_path: Path) -> None:
    with start_pair(tmp_path / "redis", **DURABLE) as (primary, replica):
        with serve(tmp_path, primary.url, store=REPLICATED) as server:
            assert_unknown_without(replica, server)
        assert faults_of(primary.client()) == []


def test_in_a_cluster_too_the_replica_of_the_shard_must_confirm(tmp_path: Path) -> None:
    with start_cluster(tmp_path / "redis", masters=3, replicas=True) as cluster:
        place = cluster.nodes.index(cluster.owner(cluster.slot("{codeq:0}")))
        with serve(tmp_path, cluster_url(cluster), store=REPLICATED) as server:
            assert_unknown_without(cluster.replicas[place], server)


def assert_unknown_without(replica: RedisNode, server: Server) -> None:
    acme = server.tenant("acme")
    first = acme.create()
    replica.pause()
    body = {"command": "work", "payload": 1, "idempotencyKey": "k"}
    refused(acme.producer.post(paths.TASKS, body), 503, "store-unavailable")
    replica.go_on()
    made = eventually(lambda: _created(acme.producer.post(paths.TASKS, body).json()))
    assert {acme.claim()["id"], acme.claim()["id"]} == {first["id"], made}
    assert acme.worker.post(paths.CLAIM, {"commands": ["work"]}).status_code == 204


def _created(answer: dict[str, str]) -> str:
    return answer.get("id", "")


def test_a_failover_to_a_replica_that_confirmed_loses_nothing(tmp_path: Path) -> None:
    with (
        start_pair(tmp_path / "redis") as (primary, replica),
        start_node(tmp_path / "redis" / "third", repl_diskless_sync_delay=0) as third,
        ReplyLosingProxy(primary.port) as address,
    ):
        third.command("REPLICAOF", "127.0.0.1", replica.port)
        with serve(tmp_path, f"redis://127.0.0.1:{address.port}/0", store=REPLICATED) as server:
            with RedisLoad([server]) as load:
                load.more()
                primary.kill()
                replica.command("REPLICAOF", "NO", "ONE")
                address.server_port = replica.port
                address.close_connections()
                load.more()
            assert server.process.poll() is None
        assert_exactly_once(load, replica.client())


@pytest.mark.cluster
def test_partitions_and_failovers_lose_nothing_that_a_replica_confirmed(tmp_path: Path) -> None:
    assert_clean(redis_kills.fail_over(tmp_path, rounds=2, workers=3))


def test_a_replica_that_was_promoted_after_a_write_cannot_confirm_it(tmp_path: Path) -> None:
    async def story(url: str, fail_over: Callable[[], None]) -> None:
        store = open_redis(url, RedisOptions(replicas=1), process="a", clock=FakeClock())
        await store.flush()
        primaries = store.primaries
        fail_over()  # after a write, before it is confirmed
        await store.counts(None)  # connects to the new primary
        first = asyncio.create_task(store.flush())
        for _ in range(3):
            await asyncio.sleep(0)  # it has asked the new primary, and has no answer yet
        second = asyncio.create_task(store.flush())
        for flush in (first, second, store.flush(since=primaries)):
            with pytest.raises(StoreUnavailable, match="primary"):
                await flush
        await store.flush(since=store.primaries)
        await store.close()

    with (
        start_pair(tmp_path / "redis") as (primary, replica),
        start_node(tmp_path / "redis" / "third", repl_diskless_sync_delay=0) as third,
        ReplyLosingProxy(primary.port) as address,
    ):
        third.command("REPLICAOF", "127.0.0.1", replica.port)
        wait_until(lambda: in_step(replica), "the replica of the replica")

        def fail_over() -> None:
            primary.kill()
            replica.command("REPLICAOF", "NO", "ONE")
            address.server_port = replica.port
            address.close_connections()

        asyncio.run(story(f"redis://127.0.0.1:{address.port}/0", fail_over))


def test_a_claim_whose_primary_is_gone_is_not_confirmed_by_the_next_one(tmp_path: Path) -> None:
    """It may not have the lease: another worker would get the task as well."""

    async def story(url: str, fail_over: Callable[[], None]) -> None:
        waiters = Waiters()
        store = open_redis(url, RedisOptions(replicas=1), process="a", listeners=[waiters])
        core = make_core(store, waiters, QueuePolicy(), randomness=random.Random(1))
        await enqueue.enqueue(core, "acme", [NewTask(command="work", payload=b"1")])
        flush = store.flush

        async def flush_late(*ids: Any, **since: Any) -> None:
            fail_over()  # after the lease, before it is confirmed
            await store.counts(None)  # connects to the new primary
            with pytest.raises(StoreUnavailable, match="primary"):
                await flush()  # another call finds out, and from now on the new primary is known
            await flush(*ids, **since)

        store.flush = flush_late  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable, match="primary"):
            await claim.claim(core, "acme", Claim(worker="ann", commands=("work",)))
        store.flush = flush  # type: ignore[method-assign]
        assert len(await claim.claim(core, "acme", Claim(worker="bob", commands=("work",)))) == 1
        await store.close()

    with (
        start_pair(tmp_path / "redis") as (primary, replica),
        start_node(tmp_path / "redis" / "third", repl_diskless_sync_delay=0) as third,
        ReplyLosingProxy(primary.port) as address,
    ):
        third.command("REPLICAOF", "127.0.0.1", replica.port)
        wait_until(lambda: in_step(replica), "the replica of the replica")

        def fail_over() -> None:
            primary.kill()
            replica.command("REPLICAOF", "NO", "ONE")
            address.server_port = replica.port
            address.close_connections()

        asyncio.run(story(f"redis://127.0.0.1:{address.port}/0", fail_over))


# -- memory, and unsafe settings -------------------------------------------------------------------------------------


def test_redis_without_memory_refuses_clearly_and_writes_nothing_half(tmp_path: Path) -> None:
    with start_node(tmp_path / "redis", maxmemory_policy="noeviction") as node:
        with serve(tmp_path, node.url) as server:
            acme = server.tenant("acme")
            made = [acme.create(payload=payload)["id"] for payload in ("small", LARGE)]
            node.command("CONFIG", "SET", "maxmemory", 1)
            for payload in ("small", LARGE):
                body = {"command": "work", "payload": payload}
                refused(acme.producer.post(paths.TASKS, body), 503, "store-unavailable")
            assert faults_of(node.client()) == []
            node.command("CONFIG", "SET", "maxmemory", 0)
            made.append(acme.create()["id"])
            assert [acme.claim()["id"] for _ in made] == made
            assert server.process.poll() is None
        assert faults_of(node.client()) == []


def test_redis_without_memory_lets_tasks_end_and_be_deleted(tmp_path: Path) -> None:
    """Else nothing would ever free any."""
    with start_node(tmp_path / "redis", maxmemory_policy="noeviction") as node:
        with serve(tmp_path, node.url) as server:
            acme = server.tenant("acme")
            made = [acme.create(maxAttempts=1)["id"] for _ in range(8)]
            held = [acme.claim()["id"] for _ in range(3)]
            node.command("CONFIG", "SET", "maxmemory", 1)
            outcome = {"status": "COMPLETED", "result": 1}
            answered(acme.worker.post(at(paths.HEARTBEAT, held[0]), {}), 200)
            answered(acme.worker.post(at(paths.RESULT, held[0]), outcome), 200)
            large = {"status": "COMPLETED", "result": LARGE}
            refused(acme.worker.post(at(paths.RESULT, held[1]), large), 503, "store-unavailable")
            answered(acme.worker.post(at(paths.NACK, held[2]), {}), 200)  # its last attempt
            refused(acme.worker.post(at(paths.ABANDON, held[1]), {}), 503, "store-unavailable")
            answered(acme.producer.post(at(paths.CANCEL, made[7])), 200)
            assert answered(acme.admin.post(paths.DLQ_PURGE, {"ids": [held[2]]}), 200)["changed"] == 1
            refused(acme.producer.post(paths.TASKS, {"command": "work", "payload": 1}), 503, "store-unavailable")
            node.command("CONFIG", "SET", "maxmemory", 0)
            answered(acme.worker.post(at(paths.RESULT, held[1]), large), 200)
        assert faults_of(node.client()) == []


def test_a_result_is_accepted_though_a_new_task_that_came_with_it_finds_no_memory(tmp_path: Path) -> None:
    async def story(node: RedisNode) -> None:
        waiters = Waiters()
        store = open_redis(node.url, RedisOptions(), process="a", listeners=[waiters])
        core = make_core(store, waiters, QueuePolicy(), randomness=random.Random(1))
        await enqueue.enqueue(core, "acme", [NewTask(command="work", payload=b"1")] * 4)
        held = await claim.claim(core, "acme", Claim(worker="ann", commands=("work",), limit=4))
        node.command("CONFIG", "SET", "maxmemory", 1)
        calls: list[Any] = []
        for each in held:
            calls.append(enqueue.enqueue(core, "acme", [NewTask(command="work", payload=b"1")]))
            done = Outcome(task_id=each.task.id, holder=Holder("ann"), status=Status.COMPLETED, result=b"1")
            calls.append(submit.submit(core, "acme", [done]))
        answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [OutOfMemory, list] * 4
        assert {answer[0].task.status for answer in answers[1::2]} == {Status.COMPLETED}
        await store.close()

    with start_node(tmp_path / "redis", maxmemory_policy="noeviction") as node:
        asyncio.run(story(node))


def test_unsafe_settings_are_a_warning_and_with_strict_a_refusal(tmp_path: Path) -> None:
    with start_node(tmp_path / "redis", maxmemory_policy="allkeys-lru") as node:
        with serve(tmp_path, node.url) as server:
            for word in ("allkeys-lru", "appendonly is off"):
                assert word in server.log_text()
        env = {"CODEQ_STORE_STRICT": "true", "CODEQ_STORE_URL": node.url}
        ended = run_codeq("serve", "--dev", "--data", str(tmp_path / "strict"), "--port", "0", env=env)
        assert ended.returncode != 0
        assert "allkeys-lru" in ended.stdout + ended.stderr


# -- lost replies ----------------------------------------------------------------------------------------------------


def test_a_change_and_a_claim_whose_replies_were_lost_happen_once(tmp_path: Path) -> None:
    with start_node(tmp_path / "redis") as node, ReplyLosingProxy(node.port) as proxy:
        with serve(tmp_path, f"redis://127.0.0.1:{proxy.port}/0") as server:
            acme = server.tenant("acme")
            acme.create("warm")
            for payload in ("small", LARGE):
                proxy.lose_replies = True
                body = {"command": "work", "payload": payload}
                refused(
                    acme.producer.post(paths.TASKS, {**body, "idempotencyKey": payload[:5]}), 503, "store-unavailable"
                )
                proxy.lose_replies = False
                answered(acme.producer.post(paths.TASKS, {**body, "idempotencyKey": payload[:5]}), 202)
            proxy.lose_replies = True
            claim = {"commands": ["work"], "count": 2, "requestId": "once"}
            refused(acme.worker.post(paths.CLAIM_BATCH, claim), 503, "store-unavailable")
            proxy.lose_replies = False
            assert len(answered(acme.worker.post(paths.CLAIM_BATCH, claim), 200)["tasks"]) == 2
        moves = [event.move for event in read_shard(node.client(), 0).events.values()]
        assert (moves.count(Move.ENQUEUE), moves.count(Move.CLAIM)) == (3, 2)
        assert faults_of(node.client()) == []


# -- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hour_s", [3600, -3600])
def test_a_server_whose_clock_is_an_hour_off_ends_no_lease_early_and_no_delay_late(
    tmp_path: Path, clock_library: Path, hour_s: int
) -> None:
    (tmp_path / "step").write_text(str(hour_s))
    clock_off = [f"LD_PRELOAD={clock_library}", f"STEP_FILE={tmp_path / 'step'}"]
    with start_node(tmp_path / "redis") as node, serve(tmp_path, node.url, name="a") as here:
        with serve(tmp_path, node.url, name="b", before=["env", *clock_off]) as wrong:
            before_s = time.time()
            with (
                Client(here.base, DEV_TOKEN) as right,
                Client(wrong.base, DEV_TOKEN) as off,
            ):
                task = off.enqueue("held", 1)
                assert abs(record_of(task).created_ms / 1000 - before_s) < 60
                [job] = right.claim("held", lease=300)
                assert off.claim("held") == []
                off.enqueue("later", 1, delay=1)
                assert right.claim("later") == []
                assert off.claim("later") == []
                assert len(right.claim("later", wait=20)) == 1
                right.complete(job)
        assert Move.EXPIRE not in [event.move for event in read_shard(node.client(), 0).events.values()]


# -- commands --------------------------------------------------------------------------------------------------------

COMMANDS = """
    append del eval evalsha exec exists get hdel hexists hget hgetall hincrby hmget hscan hset hsetnx incrby info
    lindex llen lpop lpush ltrim multi pexpire psubscribe publish punsubscribe rpush sadd select set smembers srem
    subscribe time unsubscribe xadd xrange xrevrange xtrim zadd zcard zlexcount zrange zrangebylex zrangebyscore zrem
    zrevrangebylex zscore
    config|get
""".split()  # noqa: SIM905 - a list of fifty words is easier to read like this
"""All that the engine sends, directly or from a script: commands that KVRocks documents as well, though it was not run.
`replicated` needs `wait` besides, which KVRocks lacks."""


def test_check_86_a_user_who_may_run_only_the_documented_commands_can_do_everything(tmp_path: Path) -> None:
    with start_node(tmp_path / "redis") as node:
        node.command("ACL", "SETUSER", "codeq", "on", ">secret", "~*", "&*", *[f"+{name}" for name in COMMANDS])
        with serve(tmp_path, f"redis://codeq:secret@127.0.0.1:{node.port}/0") as server:
            acme = server.tenant("acme")
            for payload in ("small", LARGE):
                acme.ended(payload=payload)
            held = acme.held()
            answered(acme.worker.post(at(paths.HEARTBEAT, held["id"]), {"progress": "half"}), 200)
            answered(acme.worker.post(at(paths.NACK, held["id"]), {"delaySeconds": 0.1}), 200)
            assert acme.claim(waitSeconds=10)["id"] == held["id"]
            dead = acme.dead("fragile")
            answered(acme.admin.post(paths.DLQ_REPLAY, {"ids": [dead["id"]]}), 200)
            answered(acme.admin.put(at(paths.TOPIC, "work"), {"policy": {"maxConsumers": 5}}), 201)
            answered(acme.producer.post(at(paths.CANCEL, acme.create()["id"])), 200)
            acme.held()  # behind the entry of the cancelled task
            for path in (paths.TASKS, paths.QUEUES, at(paths.HISTORY, held["id"])):
                answered(acme.producer.get(path), 200)
            answered(acme.admin.get(paths.EVENTS), 200)
            answered(acme.admin.post(paths.CLEANUP, {}), 200)
            assert server.stop() == 0
        refusals = [str(entry["object"]) for entry in node.client().acl_log()]
        assert [name for name in refusals if "client" not in name] == []  # the library names itself if it may
        assert faults_of(node.client()) == []


def test_check_86_the_scripts_call_only_the_documented_commands() -> None:
    for script in files("codeq.store.redis").joinpath("scripts").iterdir():
        used = re.findall(r"(?:call|each)\('(\w+)'", script.read_text())
        assert used
        assert {name.lower() for name in used} <= set(COMMANDS), script.name
