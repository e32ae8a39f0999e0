"""The values of the application: what is to be reviewed, and what was found."""

import time
from enum import IntEnum, StrEnum

from msgspec import Struct


def now_ms() -> int:
    """Milliseconds since 1970, as every time in the database."""
    return time.time_ns() // 1_000_000


class Kind(StrEnum):
    """What a provider reported. Merge requests are pull requests."""

    PULL = "pull"
    PUSH = "push"


class Priority(IntEnum):
    """Somebody waits for the review of a pull request; nobody waits for that of a push."""

    HIGH = 100
    NORMAL = 50


class Status(StrEnum):
    """Of a review: it waits (in the outbox or in the queue), runs, and ends as done or failed."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class ReviewRequest(Struct, frozen=True, kw_only=True):
    """One pull request or push in one state, as its webhook describes it."""

    provider: str
    delivery: str
    kind: Kind
    repository: str
    subject: str
    """Identifies what is reviewed inside its repository: the same subject is reviewed once."""
    base: str
    """The commit, or `refs/heads/<branch>`, that the change is compared with; all zeros for a new branch."""
    head: str
    title: str
    author: str
    url: str

    @property
    def priority(self) -> Priority:
        return Priority.HIGH if self.kind is Kind.PULL else Priority.NORMAL


class Review(ReviewRequest, frozen=True, kw_only=True):
    """A request that was accepted, and how far its review is."""

    id: int
    status: Status
    attempts: int
    fencing: int
    error: str
    received_ms: int
    started_ms: int | None
    ended_ms: int | None
    findings: int
    """Their number."""


class Due(Struct, frozen=True):
    """A review that is to be offered to the queue."""

    review_id: int
    priority: Priority
    attempts: int


class Finding(Struct, frozen=True):
    """One remark of a reviewer. Line 0 is the whole file, an empty file the whole change."""

    file: str
    line: int
    rule: str
    message: str
