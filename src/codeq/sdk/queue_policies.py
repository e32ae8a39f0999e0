"""The rules of a queue as programs set and read them: times are seconds."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from codeq.domain import queue as stored
from codeq.domain.backoff import Backoff, PartialBackoff
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import LEASE_MS_MAX, LEASE_MS_MIN, RETENTION_MS_MAX
from codeq.domain.queue import OnExpiry
from codeq.sdk.durations import Seconds, milliseconds_from, unix_ms
from codeq.sdk.tasks import moment

_TIMES = {"lease": "lease_ms", "retention": "retention_ms", "dead_retention": "dead_retention_ms"}
_BOUNDS_MS = {"lease": (LEASE_MS_MIN, LEASE_MS_MAX)}
_MOMENTS = {"created_at": "created_ms", "updated_at": "updated_ms"}


@dataclass(frozen=True, kw_only=True)
class QueuePolicy:
    """The rules that were set for one queue. A rule that is None was not set: it follows the server's setting, also
    when that changes. Change one with `dataclasses.replace(policy, lease=30)`."""

    max_attempts: int | None = None
    max_deliveries: int | None = None
    lease: Seconds | None = None
    backoff: PartialBackoff | None = None
    """Made by `codeq.exponential` and the like, or by `codeq.partial_backoff` to set only some of its parts."""
    on_expiry: OnExpiry | None = None
    retention: Seconds | None = None
    """How long ended tasks are kept."""
    dead_retention: Seconds | None = None
    """How long dead ones are."""
    max_consumers: int | None = None
    """How many tasks of the queue may be in progress at once; 0 for no limit."""
    paused: bool | None = None
    """A paused queue accepts new tasks and delivers none."""
    priority_tiers: tuple[int, ...] | None = None
    dead_letter_ref: str | None = None
    """Stored, like `priority_tiers`, for readers of the queue catalogue, as in the original codeQ; has no effect."""
    version: int = 0
    """1 for the first policy of a queue, and one more with each change; 0 for a policy that is not stored."""
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def etag(self) -> str:
        """Identifies this version of the policy. Differs also from the policies before and after a deletion, which
        have the same version numbers."""
        return stored_policy(self).etag


@dataclass(frozen=True, kw_only=True)
class EffectivePolicy:
    """The rules that apply in one queue: those of its policy, and the server's settings for the others."""

    max_attempts: int
    max_deliveries: int
    lease: float
    backoff: Backoff
    on_expiry: OnExpiry
    retention: float
    dead_retention: float
    max_consumers: int
    paused: bool
    priority_tiers: tuple[int, ...]
    dead_letter_ref: str | None


def stored_policy(policy: QueuePolicy) -> stored.QueuePolicy:
    """The rules as they are stored and sent."""
    if not isinstance(policy, QueuePolicy):
        raise InvalidRequest(f"the rules of a queue are a codeq.QueuePolicy, not {type(policy).__name__}")
    return stored.QueuePolicy(**_written(policy))


def stored_effective(policy: EffectivePolicy) -> stored.EffectivePolicy:
    return stored.EffectivePolicy(**_written(policy))


def policy_of(found: stored.QueuePolicy) -> QueuePolicy:
    return QueuePolicy(**_read(found))


def effective_of(found: stored.EffectivePolicy) -> EffectivePolicy:
    return EffectivePolicy(**_read(found))


def _read(found: stored.QueuePolicy | stored.EffectivePolicy) -> dict[str, Any]:
    rules = msgspec.structs.asdict(found)
    for name, stored_as in _TIMES.items():
        value_ms = rules.pop(stored_as)
        rules[name] = None if value_ms is None else value_ms / 1000
    for name, stored_as in _MOMENTS.items():
        if stored_as in rules:
            at_ms = rules.pop(stored_as)
            rules[name] = moment(at_ms) if at_ms else None
    return rules


def _written(policy: QueuePolicy | EffectivePolicy) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    for name, value in vars(policy).items():
        if name in _TIMES:
            least_ms, most_ms = _BOUNDS_MS.get(name, (0, RETENTION_MS_MAX))
            what = name.replace("_", " ")
            rules[_TIMES[name]] = None if value is None else milliseconds_from(value, what, least_ms, most_ms)
        elif name in _MOMENTS:
            rules[_MOMENTS[name]] = 0 if value is None else unix_ms(value)
        else:
            rules[name] = value
    return rules
