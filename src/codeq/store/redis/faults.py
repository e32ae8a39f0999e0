"""What goes wrong with Redis and on the way to it, as errors of the store: passing, refused, or for good."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

import redis as redis_py

from codeq.domain.errors import StoreError, StoreUnavailable

_PASSING = frozenset(
    {
        "ASK", "BUSY", "CLUSTERDOWN", "EXECABORT", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS",
        "READONLY", "TRYAGAIN", "UNKILLABLE",
    }
)  # fmt: skip
_SCRIPT_FAULT = re.compile(f"-({'|'.join(sorted(_PASSING))}) ")
"""How Redis before 7 names the fault of a command that a script called."""
_IN_PIPELINE = re.compile(r".* of pipeline caused error: (?:\(['\"])?", re.DOTALL)
"""What the library puts before an error of a command that was sent with others: the command, with what users sent."""
_STRANGER = "Protocol error: unauthenticated"
"""What Redis answers to a long command of a connection that has not logged in: somebody has set a password."""
_KILLED = "Script killed by user"
"""Redis lets nobody kill a script that has written something."""
_NUMBER_IS_LOST = "equal or smaller than the target stream top item"


class OutOfMemory(StoreUnavailable):
    """Redis has reached its `maxmemory`, and has changed nothing."""


FAULTS = (
    redis_py.exceptions.RedisError, redis_py.exceptions.RedisClusterException, OSError, RuntimeError, AttributeError,
)  # fmt: skip
"""What the library raises: the second when no node of a cluster can be reached, the last two for a connection that it
closed under a call, when a cluster changes; `passing` tells them from mistakes of our own."""


def passing(fault: Exception) -> StoreError:
    """Returns the error for a fault of Redis or of the way to it. Its text names no host: callers may see it.

    Raises the fault itself where it is a mistake in our own code, which no repetition mends.
    """
    if isinstance(fault, RuntimeError | AttributeError) and not _is_of_library(fault):
        raise fault
    text = _text_of(fault)
    word = _error_code(fault)
    if isinstance(fault, redis_py.exceptions.OutOfMemoryError) or word == "OOM" or "OOM command" in text:
        return OutOfMemory("the store has no memory left (maxmemory); nothing was changed")
    if isinstance(fault, redis_py.exceptions.TimeoutError | TimeoutError):
        return StoreUnavailable(
            "the store did not answer in time, so whether the call took effect is unknown; repeat it"
        )
    is_refused = isinstance(fault, redis_py.exceptions.AuthenticationError | redis_py.exceptions.NoPermissionError)
    if is_refused or text.startswith(_STRANGER):
        # Passing: after a failover the new primary may not know the user yet, and a password may be put right again.
        return StoreUnavailable(f"the store refuses this server's user ({type(fault).__name__})")
    is_passing = isinstance(
        fault,
        redis_py.exceptions.ConnectionError
        | redis_py.exceptions.ClusterError
        | redis_py.exceptions.InvalidResponse  # a proxy on the way answers, or another service has taken the port
        | OSError
        | RuntimeError
        | AttributeError,
    )
    if (
        is_passing
        or word in _PASSING
        or "non local key" in text
        or _KILLED in text
        or isinstance(fault, redis_py.exceptions.RedisClusterException)
    ):
        return StoreUnavailable(
            f"the store cannot be used at the moment ({word if word.isupper() else type(fault).__name__}); "
            "repeat the call"
        )
    if _NUMBER_IS_LOST in text:
        return StoreError(
            "the number of the last event is gone from Redis, so keys were deleted there, by eviction or by hand; set "
            "maxmemory-policy noeviction, and restore a backup"
        )
    return StoreError(f"Redis: {text}")


def is_from_replica(fault: Exception) -> bool:
    """Returns whether the server that answered may not be written to: it is no longer the primary."""
    return _error_code(fault) == "READONLY"


def _is_of_library(fault: Exception) -> bool:
    """Returns whether the library raised it, or what it called: the last frame of ours called the library."""
    packages = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(fault.__traceback__)]
    known = [package for package in packages if package in ("redis", "codeq")]
    return known[-1:] == ["redis"]


@contextmanager
def passing_faults_ignored() -> Iterator[None]:
    """Goes on after a fault of Redis or of the way to it, and raises mistakes of our own."""
    try:
        yield
    except FAULTS as fault:
        passing(fault)


def _error_code(fault: Exception) -> str:
    """Returns the first word of Redis's answer. The library takes it off the text of the errors that it knows."""
    text = _text_of(fault)
    inner = _SCRIPT_FAULT.search(text)
    return inner[1] if inner else getattr(fault, "status_code", None) or text.partition(" ")[0]


def _text_of(fault: Exception) -> str:
    return _IN_PIPELINE.sub("", str(fault), count=1)
