"""What a queue is: one tenant's tasks of one command, with their indexes, counts and policy."""

from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from codeq.domain.backoff import Backoff, PartialBackoff
from codeq.domain.limits import ATTEMPTS_DEFAULT, DELIVERIES_DEFAULT, LEASE_MS_DEFAULT, RETENTION_MS_DEFAULT

SYSTEM_PREFIX: Final = "$"
WEBHOOKS: Final = "$webhooks"
"""The command of the deliveries of result callbacks. Each tenant has a queue of them."""


class QueueKey(NamedTuple):
    tenant: str
    command: str


def is_system(command: str) -> bool:
    """Returns whether tasks of this command are the server's own. No user can name such a command: see
    `limits.NAME_PATTERN`. Workers do not get these tasks, and lists leave them out unless they name the command."""
    return command.startswith(SYSTEM_PREFIX)


class Index(StrEnum):
    """The index that a task is in. Each task is in exactly one, which follows from its record."""

    PENDING = "pending"
    DELAYED = "delayed"
    IN_PROGRESS = "in_progress"
    DEAD = "dead"
    NONE = "none"
    """Ended, and waiting only for its retention to pass."""


class OnExpiry(StrEnum):
    BACKOFF = "backoff"
    IMMEDIATE = "immediate"


class EffectivePolicy(Struct, frozen=True, kw_only=True, gc=False):
    """The rules that apply in one queue: those of its policy, and the server's settings for the others."""

    max_attempts: int = ATTEMPTS_DEFAULT
    max_deliveries: int = DELIVERIES_DEFAULT
    lease_ms: int = LEASE_MS_DEFAULT
    backoff: Backoff = Backoff()
    on_expiry: OnExpiry = OnExpiry.BACKOFF
    retention_ms: int = RETENTION_MS_DEFAULT
    dead_retention_ms: int = RETENTION_MS_DEFAULT
    max_consumers: int = 0
    paused: bool = False
    priority_tiers: tuple[int, ...] = ()
    dead_letter_ref: str | None = None


class QueuePolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The rules that were set for one queue. A rule that is None was not set: it follows the server's setting, also
    when that changes."""

    max_attempts: int | None = None
    max_deliveries: int | None = None
    lease_ms: int | None = None
    backoff: PartialBackoff | None = None
    """A `Backoff`, or a `PartialBackoff` to set only some of its parts."""
    on_expiry: OnExpiry | None = None
    retention_ms: int | None = None
    dead_retention_ms: int | None = None
    max_consumers: int | None = None
    """How many tasks of the queue may be in progress at once; 0 for no limit."""
    paused: bool | None = None
    """A paused queue accepts new tasks and delivers none."""
    priority_tiers: tuple[int, ...] | None = None
    dead_letter_ref: str | None = None
    """Stored, like `priority_tiers`, for readers of the queue catalogue, as in the original codeQ; has no effect."""
    version: int = 0
    """1 for the first policy of a queue, and one more with each change; 0 for a policy that is not stored."""
    created_ms: int = 0
    updated_ms: int = 0

    @property
    def etag(self) -> str:
        """Identifies this version of the policy. Differs also from the policies before and after a deletion, which
        have the same version numbers."""
        return f"{self.version}-{self.created_ms}" if self.version else "0"


def effective_policy(policy: QueuePolicy, defaults: EffectivePolicy) -> EffectivePolicy:
    """Returns the rules of the policy, and the defaults for those that are not set."""
    rules = _set_fields(policy, EffectivePolicy.__struct_fields__)
    if policy.backoff is not None:
        parts = _set_fields(policy.backoff, Backoff.__struct_fields__)
        rules["backoff"] = msgspec.structs.replace(defaults.backoff, **parts)
    return msgspec.structs.replace(defaults, **rules)


def _set_fields(value: Struct, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: field for name in names if (field := getattr(value, name)) is not None}


class QueueCounts(Struct, frozen=True, kw_only=True, gc=False):
    """How many tasks are in each index. Exact at the time of the call, and read in constant time."""

    pending: int = 0
    delayed: int = 0
    in_progress: int = 0
    dead: int = 0
    oldest_ms: int | None = None
    """When the pending task that waits longest became visible; None when none waits."""


class QueueStatus(Struct, frozen=True, kw_only=True, gc=False):
    """One queue as operators see it."""

    key: QueueKey
    counts: QueueCounts
    paused: bool
    oldest_age_ms: int
    """How long the task that waits longest has been ready; 0 when none waits."""
    workers: int
    """How many workers that were heard from lately claim from it; 0 if nobody works on it."""
