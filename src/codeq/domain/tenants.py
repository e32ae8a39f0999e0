"""What one tenant stores, and what it may store."""

from collections.abc import Set

from msgspec import Struct


class StorageUsage(Struct, frozen=True, gc=False):
    """What a tenant has stored."""

    tasks: int = 0
    """That have not ended: pending, delayed and in progress."""
    payload_bytes: int = 0
    """Of all tasks, until they are purged."""
    queues: int = 0
    """That hold a task, dead ones included. Unless commands were asked for, a queue counts in each of its shards."""
    policies: int = 0
    commands: Set[str] = frozenset()
    """Those of the commands asked for that have tasks."""
    keys: Set[str] = frozenset()
    """Those of the idempotency keys asked for that belong to a task."""


class TenantLimits(Struct, frozen=True, kw_only=True, gc=False):
    """The most of each that a tenant may store; 0 for no limit."""

    tasks: int = 0
    payload_bytes: int = 0
    queues: int = 0
    policies: int = 0


UNLIMITED = TenantLimits()
