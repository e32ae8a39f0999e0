"""Bounds the memory of large answers that clients have not read yet: overall and per tenant."""

from typing import Any

from codeq.wire.errors import Unavailable


class AnswerBudget:
    """Counts what was written to connections. How much of it a client has read is looked up when it matters only."""

    def __init__(self, total_max: int, tenant_max: int) -> None:
        self._total_max = total_max
        self._tenant_max = tenant_max
        self.unread: dict[Any, tuple[str, int]] = {}
        """By connection: tenant and bytes of the last large answer. Empty while nobody gets large answers."""

    def add(self, tenant: str, connection: Any, size: int) -> None:
        """Counts an answer of this size that is about to be written. Raises Unavailable if that is too much."""
        if not self._has_room(tenant, size):
            self._look_again()
            if not self._has_room(tenant, size):
                raise Unavailable(
                    "the answers that were not read yet, of this tenant or of all, are too large together; read them, "
                    "or try again in a moment"
                )
        self.unread[connection] = (tenant, size)

    def forget(self, connection: Any) -> None:
        """Stops counting the connection, which is lost."""
        self.unread.pop(connection, None)

    def _has_room(self, tenant: str, size: int) -> bool:
        mine = sum([unread for owner, unread in self.unread.values() if owner == tenant])
        total = sum([unread for _, unread in self.unread.values()])
        return mine + size <= self._tenant_max and total + size <= self._total_max

    def _look_again(self) -> None:
        """Takes back what clients have read since."""
        left = {each: (owner, each.transport.get_write_buffer_size()) for each, (owner, _) in self.unread.items()}
        self.unread = {each: unread for each, unread in left.items() if unread[1]}
