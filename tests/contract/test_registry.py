"""Entries about workers and subscribers: seen by all, replaced by name, gone when they expire."""

import pytest
from tests.contract.world import World

from codeq.store.interface import Registration
from codeq.store.rocksdb.write_buffer import WriteBuffer
from codeq.usecases import cancel

KIND = "worker"


def entry(
    world: World, name: str, value: bytes = b"v", *, tenant: str = "acme", kind: str = KIND, ttl_ms: int = 1000
) -> Registration:
    return Registration(kind=kind, tenant=tenant, name=name, value=value, expires_ms=world.clock.now_ms + ttl_ms)


async def names(world: World, tenant: str | None = "acme", kind: str = KIND) -> list[str]:
    return sorted(each.name for each in await world.store.registry.entries(kind, tenant))


async def test_an_entry_is_read_back_whole_and_replaced_by_name(world: World) -> None:
    registry = world.store.registry
    await registry.put([entry(world, "a", b"\x00\xffone")])
    await registry.put([entry(world, "a", b"two", ttl_ms=5000), entry(world, "b")])
    found = {each.name: each for each in await registry.entries(KIND, "acme")}
    assert found["a"] == entry(world, "a", b"two", ttl_ms=5000)
    assert await registry.get(KIND, "acme", ["b", "none", "a"]) == [found["b"], None, found["a"]]
    assert sorted(found) == ["a", "b"]


async def test_entries_expire_and_renewed_ones_do_not(world: World) -> None:
    await world.store.registry.put([entry(world, "short"), entry(world, "renewed")])
    world.clock.pass_ms(900)
    await world.store.registry.put([entry(world, "renewed")])
    world.clock.pass_ms(100)
    assert await world.store.registry.get(KIND, "acme", ["short"]) == [None]
    assert await names(world) == ["renewed"]
    world.clock.pass_ms(900)
    assert await names(world) == []
    assert await names(world, None) == []


async def test_kinds_and_tenants_are_kept_apart(world: World) -> None:
    await world.store.registry.put(
        [
            entry(world, "a", tenant="acme"),
            entry(world, "a", tenant="acme:x"),
            entry(world, "a", tenant="auth0|1 \N{SNOWMAN}"),
            entry(world, "s", kind="subscription"),
        ]
    )
    assert await names(world, "acme") == ["a"]
    assert await names(world, "auth0|1 \N{SNOWMAN}") == ["a"]
    assert await names(world, "other") == []
    assert await names(world, None) == ["a", "a", "a"]
    assert await names(world, None, "subscription") == ["s"]


@pytest.mark.parametrize("kind", ["worker", "subscription", "announced"])
async def test_a_tenant_with_the_name_of_a_kind_has_queues_like_any_other(world: World, kind: str) -> None:
    tasks = [await world.enqueue("acme", tenant=kind) for _ in range(3)]
    await cancel.cancel(world.core, kind, [tasks[0].id])
    await world.store.registry.put([entry(world, "a", kind=kind)])
    await cancel.cancel(world.core, kind, [tasks[1].id])
    assert await names(world, "acme", kind) == ["a"]
    assert [task.id for task in await world.claim("acme", tenant=kind)] == [tasks[2].id]
    for shard in (await world.events()).values():
        assert [event.version for event in shard] == list(range(1, len(shard) + 1))


async def test_only_one_of_two_adds_the_same_entry_until_it_has_expired(world: World) -> None:
    registry = world.store.registry
    assert await registry.add([entry(world, "once"), entry(world, "once"), entry(world, "other")]) == [
        True,
        False,
        True,
    ]
    assert await registry.add([entry(world, "once")]) == [False]
    world.clock.pass_ms(1000)
    assert await registry.add([entry(world, "once")]) == [True]


async def test_an_entry_advances_to_a_greater_value_and_never_back(world: World) -> None:
    registry = world.store.registry
    values = [b"%020d" % number for number in (7, 7, 12, 9, 1 << 62)]
    assert [await registry.advance([entry(world, "n", value)], over=[value]) for value in values] == [
        [True], [False], [True], [False], [True],
    ]  # fmt: skip
    [found] = await registry.get(KIND, "acme", ["n"])
    assert found is not None
    assert int(found.value) == 1 << 62
    over_it, below_it = [b"%020d" % (1 << 63), b"%020d" % 5]
    entries = [entry(world, "n", values[0]), entry(world, "n", values[1]), entry(world, "m", values[2])]
    assert await registry.advance(entries, over=[over_it, below_it, b""]) == [True, False, True]
    assert [int(each.value) for each in await registry.get(KIND, "acme", ["n", "m"]) if each] == [7, 12]
    world.clock.pass_ms(1000)
    assert await registry.advance([entry(world, "n", values[0])], over=[b""]) == [True]


async def test_removed_entries_are_gone_and_it_is_told_which_there_were(world: World) -> None:
    registry = world.store.registry
    await registry.put([entry(world, "a"), entry(world, "b")])
    assert await registry.remove(KIND, "acme", ["a", "unknown"]) == [True, False]
    assert await names(world) == ["b"]
    assert await registry.remove(KIND, "other", ["b"]) == [False]


@pytest.mark.parametrize("count", [2500])
async def test_many_expired_entries_go_in_bounded_steps(world: World, count: int) -> None:
    await world.store.registry.put([entry(world, f"w{number}") for number in range(count)])
    world.clock.pass_ms(1000)
    await world.store.registry.put([entry(world, "last")])
    assert await names(world) == ["last"]


@pytest.mark.parametrize("engine", ["rocksdb"], indirect=True)
async def test_no_call_deletes_all_that_has_expired_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """(13.16) A tenant can have ten thousand entries expire in the same second, for whoever calls next."""
    registry = world.store.registry
    await registry.put([entry(world, f"w{number}") for number in range(2500)])
    world.clock.pass_ms(1000)
    deleted: list[bytes] = []
    delete = WriteBuffer.delete

    def noted(buffer: WriteBuffer, key: bytes) -> None:
        deleted.append(key)
        delete(buffer, key)

    monkeypatch.setattr(WriteBuffer, "delete", noted)
    assert await registry.get(KIND, "acme", ["w0", "w2499"]) == [None, None]
    assert await registry.add([entry(world, "w2499", b"new")]) == [True]
    assert await registry.remove(KIND, "acme", ["w2498"]) == [False]
    assert await names(world) == ["w2499"]
    assert len(deleted) < 1000
    for _ in range(50):
        await registry.get(KIND, "acme", [])
    assert len(set(deleted)) == 2499
    assert await names(world) == ["w2499"]


async def test_entries_survive_a_restart(world: World) -> None:
    await world.store.registry.put([entry(world, "a", b"value", ttl_ms=60_000), entry(world, "b", ttl_ms=10)])
    await world.store.flush()
    world.clock.pass_ms(10)
    await world.reopen()
    [found] = await world.store.registry.entries(KIND, "acme")
    assert (found.name, found.value) == ("a", b"value")
