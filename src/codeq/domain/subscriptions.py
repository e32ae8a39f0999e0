"""Who is told that a queue has tasks: subscriptions of workers, and which of them a notification goes to."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b

from msgspec import Struct


class DeliveryMode(StrEnum):
    FANOUT = "fanout"
    """Every subscription is notified."""
    GROUP = "group"
    """One subscription of each group, in rotation."""
    HASH = "hash"
    """One of all subscriptions with this mode: the one that the task's id hashes to."""


class Subscription(Struct, frozen=True, kw_only=True, gc=False):
    id: str
    tenant: str
    owner: str
    """The subject of the token that made it."""
    url: str
    commands: tuple[str, ...] | None
    """None for all commands of the tenant."""
    mode: DeliveryMode
    group: str | None
    min_interval_ms: int
    """At most one notification in this time."""
    ttl_ms: int
    created_ms: int
    expires_ms: int

    def wants(self, command: str) -> bool:
        return self.commands is None or command in self.commands


Candidates = Sequence[Subscription]
"""Subscriptions of which one is notified: the first whose interval allows it."""


def candidates(
    subscriptions: Sequence[Subscription], task_id: str, *, last_notified: Mapping[str, str]
) -> list[Candidates]:
    """Returns, for each notification to send, who may get it. `last_notified` has the subscription of each group that
    was notified last; the task is the one that made the queue ready.

    In the mode `hash` there is one candidate: the same task is for the same subscription whatever the others do, and
    one that joins or leaves changes only the tasks that hash to itself (rendezvous hashing).
    """
    found: list[Candidates] = []
    groups: defaultdict[str, list[Subscription]] = defaultdict(list)
    hashed: list[Subscription] = []
    for each in subscriptions:
        match each.mode:
            case DeliveryMode.FANOUT:
                found.append([each])
            case DeliveryMode.GROUP:
                groups[each.group or ""].append(each)
            case DeliveryMode.HASH:
                hashed.append(each)
    found += [_in_rotation(members, last_notified.get(group, "")) for group, members in groups.items()]
    if hashed:
        found.append([max(hashed, key=lambda each: _weight(task_id, each.id))])
    return found


def _in_rotation(members: list[Subscription], last: str) -> list[Subscription]:
    """Returns the members in the order of their ids, beginning after the last notified one."""
    members.sort(key=lambda each: each.id)
    start = next((place for place, each in enumerate(members) if each.id > last), 0)
    return members[start:] + members[:start]


def _weight(task_id: str, subscription_id: str) -> bytes:
    return blake2b(f"{task_id} {subscription_id}".encode(), digest_size=8).digest()
