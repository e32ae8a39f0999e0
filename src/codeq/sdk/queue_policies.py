"""The rules of a queue with their times in seconds, or as `timedelta`."""

from codeq.domain.backoff import PartialBackoff
from codeq.domain.queue import OnExpiry, QueuePolicy
from codeq.sdk.durations import Seconds, milliseconds


def queue_policy(
    *,
    max_attempts: int | None = None,
    max_deliveries: int | None = None,
    lease: Seconds | None = None,
    backoff: PartialBackoff | None = None,
    on_expiry: OnExpiry | None = None,
    retention: Seconds | None = None,
    dead_retention: Seconds | None = None,
    max_consumers: int | None = None,
    paused: bool | None = None,
) -> QueuePolicy:
    """A policy for `set_policy`. A rule that is None follows the server's setting. `retention` is how long ended tasks
    are kept, `dead_retention` how long dead ones, `max_consumers` how many tasks may be in progress at once."""
    return QueuePolicy(
        max_attempts=max_attempts,
        max_deliveries=max_deliveries,
        lease_ms=_ms(lease),
        backoff=backoff,
        on_expiry=on_expiry,
        retention_ms=_ms(retention),
        dead_retention_ms=_ms(dead_retention),
        max_consumers=max_consumers,
        paused=paused,
    )


def _ms(value: Seconds | None) -> int | None:
    return None if value is None else milliseconds(value)
