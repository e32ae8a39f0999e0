"""The subscriptions of each tenant that a process knows, and how many there are to each command."""

from collections import Counter

from codeq.domain.queue import is_system
from codeq.domain.subscriptions import Subscription

COUNTED_MAX = 1_000
"""Commands whose subscriptions are counted each on its own."""
EVERY_COMMAND = "*"


class SubscriptionCounts:
    """How many subscriptions there are to each command, `*` for those to all; beyond COUNTED_MAX commands, together."""

    def __init__(self) -> None:
        self.by_command: dict[str, int] = {}
        self.others = 0

    def add(self, command: str, number: int) -> None:
        if command not in self.by_command and (number < 0 or len(self.by_command) >= COUNTED_MAX):
            self.others += number
            return
        counted = self.by_command.get(command, 0) + number
        if counted:
            self.by_command[command] = counted
        else:
            del self.by_command[command]


class TenantSubscriptions:
    """The subscriptions of a tenant, some of which may have expired, and the commands that they are for."""

    __slots__ = ("_by_id", "_commands", "_counts", "_for_all", "_oldest_ms", "settled")

    def __init__(self, counts: SubscriptionCounts) -> None:
        self._by_id: dict[str, Subscription] = {}
        self._commands: Counter[str] = Counter()
        self._counts = counts
        self._for_all = 0
        self._oldest_ms = 0
        """Before this time none of them expires."""
        self.settled: dict[str, int] = {}
        """Commands whose queues are known to have tasks, and the time until which that is no news."""

    def __bool__(self) -> bool:
        return bool(self._by_id)

    @property
    def ids(self) -> list[str]:
        return list(self._by_id)

    def wants(self, command: str) -> bool:
        return command in self._commands or (self._for_all > 0 and not is_system(command))

    def put(self, subscription: Subscription) -> None:
        if subscription.id not in self._by_id:
            self.settled.clear()  # nobody has followed the queues that nobody had subscribed to
            self._count(subscription, 1)
        self._by_id[subscription.id] = subscription
        self._oldest_ms = min(self._oldest_ms, subscription.expires_ms)

    def remove(self, subscription_id: str) -> None:
        removed = self._by_id.pop(subscription_id, None)
        if removed is not None:
            self._count(removed, -1)

    def alive(self, now_ms: int) -> list[Subscription]:
        """Returns those that have not expired, and forgets the others."""
        if now_ms >= self._oldest_ms:
            for expired in [each.id for each in self._by_id.values() if each.expires_ms <= now_ms]:
                self.remove(expired)
            self._oldest_ms = min((each.expires_ms for each in self._by_id.values()), default=0)
        return list(self._by_id.values())

    def _count(self, subscription: Subscription, number: int) -> None:
        if subscription.commands is None:
            self._for_all += number
            self._counts.add(EVERY_COMMAND, number)
        for command in subscription.commands or ():
            self._counts.add(command, number)
            self._commands[command] += number
            if not self._commands[command]:
                del self._commands[command]
