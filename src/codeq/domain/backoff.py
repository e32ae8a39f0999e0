"""How long a failed task waits before it is tried again."""

from collections.abc import Callable
from enum import StrEnum

import msgspec
from msgspec import Struct

from codeq.domain.limits import BACKOFF_MS_MAX


class BackoffKind(StrEnum):
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    EXP_EQUAL_JITTER = "exp_equal_jitter"
    EXP_FULL_JITTER = "exp_full_jitter"


class PartialBackoff(Struct, frozen=True, array_like=True, eq=False, gc=False):
    """Parts of a backoff for the policy of a queue. A part that is None follows the server's setting."""

    kind: BackoffKind | None = None
    base_ms: int | None = None
    max_ms: int | None = None

    @property
    def base(self) -> float | None:
        """In seconds."""
        return None if self.base_ms is None else self.base_ms / 1000

    @property
    def most(self) -> float | None:
        """In seconds."""
        return None if self.max_ms is None else self.max_ms / 1000

    def __eq__(self, other: object) -> bool:
        """Whether all parts are equal: a `Backoff` that was stored in a policy is read as a `PartialBackoff`."""
        return isinstance(other, PartialBackoff) and msgspec.structs.astuple(self) == msgspec.structs.astuple(other)

    def __hash__(self) -> int:
        return hash(msgspec.structs.astuple(self))


class Backoff(PartialBackoff, frozen=True, array_like=True, eq=False, gc=False):
    """How the wait grows with each failed try: from `base_ms`, never above `max_ms`."""

    kind: BackoffKind = BackoffKind.EXP_FULL_JITTER
    base_ms: int = 5_000
    max_ms: int = 900_000

    def delay_ms(self, attempts: int, random: Callable[[], float]) -> int:
        """Returns the wait after the `attempts`-th failure (1 or more). `random` returns floats uniform in [0, 1)."""
        ceiling = min(self.max_ms, BACKOFF_MS_MAX)
        # Doubling stops at 2**40 ms, far above any ceiling, so the power stays small whatever the attempt.
        grown = min(self.base_ms << min(attempts - 1, 40), ceiling)
        match self.kind:
            case BackoffKind.FIXED:
                return min(self.base_ms, ceiling)
            case BackoffKind.LINEAR:
                return min(self.base_ms * attempts, ceiling)
            case BackoffKind.EXPONENTIAL:
                return grown
            case BackoffKind.EXP_EQUAL_JITTER:
                return grown // 2 + int(random() * (grown - grown // 2 + 1))
            case BackoffKind.EXP_FULL_JITTER:
                return int(random() * (grown + 1))
