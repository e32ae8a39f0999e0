"""Bounds the memory of large answers that clients have not read yet: overall and per tenant."""

from typing import Any

from codeq.wire.errors import Unavailable


class AnswerBudget:
    """Counts what was written to connections. How much of it a client has read is looked up when it matters only."""

    def __init__(self, total_max: int, tenant_max: int) -> None:
        self._total_max = total_max
        self._tenant_max = tenant_max
        self.unread: dict[str, dict[Any, int]] = {}
        """By tenant and connection: bytes of the last large answer. Empty while nobody gets large answers."""

    def add(self, tenant: str, connection: Any, size: int) -> None:
        """Counts an answer of this size that is about to be written. Raises Unavailable if that is too much."""
        if not self._has_room(tenant, size):
            self._look_again()
            if not self._has_room(tenant, size):
                raise Unavailable(
                    "the answers that were not read yet, of this tenant or of all, are too large together; read them, "
                    "or try again in a moment"
                )
        self.unread.setdefault(tenant, {})[connection] = size

    def forget(self, tenant: str, connection: Any) -> None:
        """Stops counting the connection, which is lost."""
        if tenant in self.unread:
            self.unread[tenant].pop(connection, None)

    def _has_room(self, tenant: str, size: int) -> bool:
        mine = sum(self.unread.get(tenant, {}).values()) + size
        return mine <= self._tenant_max and self._total(size) <= self._total_max

    def _total(self, size: int) -> int:
        return size + sum([sum(each.values()) for each in self.unread.values()])

    def _look_again(self) -> None:
        """Takes back what clients have read since."""
        for tenant, connections in list(self.unread.items()):
            left = {each: each.transport.get_write_buffer_size() for each in connections}
            self.unread[tenant] = {each: size for each, size in left.items() if size}
            if not self.unread[tenant]:
                del self.unread[tenant]
