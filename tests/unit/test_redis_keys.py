"""The table of Redis keys: no two of different content have the same name, whatever tenants and commands are called."""

from collections import defaultdict
from itertools import product

from codeq.domain.queue import QueueKey
from codeq.store.redis.keys import ShardKeys

COMMANDS = ["worker", "subscription", "announced", "acme", "0", "9", "-"]
NAMES = [*COMMANDS, "a:b", "%3A", "0:worker"]


def test_no_names_of_tenants_and_commands_make_two_keys_the_same() -> None:
    keys = ShardKeys("codeq", 0)
    contents: defaultdict[str, set[str]] = defaultdict(set)
    for what, key in vars(keys).items():
        if isinstance(key, str) and key.startswith(keys.tag + ":"):
            contents[key].add(what)
    for tenant in NAMES:
        for of_tenant in (keys.ended, keys.dead, keys.listing, keys.counts, keys.ready):
            contents[of_tenant(tenant)].add(of_tenant.__name__)
        contents[keys.bucket(("read", tenant))].add("bucket")
    for tenant, command in product(NAMES, COMMANDS):
        queue = keys.queue(QueueKey(tenant, command))
        for priority, pending in enumerate(queue.pending):
            contents[pending].add(f"pending {priority}")
        for what in ("delayed", "leased", "withdrawn"):
            contents[getattr(queue, what)].add(what)
        for what, key in zip(("registered", "expiries", "kinds"), keys.registry(command, tenant), strict=True):
            contents[key].add(what)
        contents[keys.claim(tenant, command, "r")].add("claim")
    assert {key: found for key, found in contents.items() if len(found) > 1} == {}
