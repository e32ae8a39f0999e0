"""The options of a handler: what `@worker.task` and `@codeq.task` take, and which errors are tried again."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from msgspec import Struct

from codeq.domain import validation
from codeq.domain.backoff import Backoff
from codeq.domain.errors import InvalidRequest
from codeq.sdk.durations import Seconds

Errors = type[BaseException] | Sequence[type[BaseException]]
RetryOn = Errors | Mapping[type[BaseException], Backoff | None]


class HandlerOptions(TypedDict, total=False):
    """What a declaration says of its tasks and of their handler."""

    lease: Seconds | None
    """How long a lease lasts without a heartbeat."""
    timeout: Seconds | None
    """Ends a try that takes longer."""
    process: bool | None
    """Whether a plain function runs in a child process; None for the worker's own rule."""
    max_attempts: int | None
    backoff: Backoff | None
    retry_on: RetryOn | None
    """Only these errors are tried again, each after its own backoff if this is a mapping; any other error moves the
    task to the dead-letter queue at once. Crashes of child processes are always tried again."""
    fail_on: Errors
    """These errors end the task as FAILED. Of `retry_on` and `fail_on` the nearer class of an error counts."""
    priority: int
    webhook: str | None


class ErrorRules(Struct, frozen=True):
    """What to do with an error, by its nearest class that has a rule."""

    retry_on: Mapping[type[BaseException], Backoff | None] | None = None
    fail_on: Sequence[type[BaseException]] = ()

    def fails(self, fault: BaseException) -> bool:
        for kind in type(fault).__mro__:
            if kind in self.fail_on:
                return True
            if self.retry_on is not None and kind in self.retry_on:
                return False
        return False

    def retries(self, fault: BaseException) -> bool:
        return self.retry_on is None or any(kind in self.retry_on for kind in type(fault).__mro__)

    def backoff(self, fault: BaseException) -> Backoff | None:
        """The backoff of this error; None for that of the handler or of the task."""
        if self.retry_on is not None:
            for kind in type(fault).__mro__:
                if kind in self.retry_on:
                    return self.retry_on[kind]
        return None


def check_names(options: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for an option that there is not: without a type checker nothing else would say so."""
    unknown = options.keys() - HandlerOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(sorted(HandlerOptions.__annotations__))
        raise InvalidRequest(f"there is no such option: {', '.join(sorted(unknown))}; there are {known}")


def error_rules(retry_on: RetryOn | None, fail_on: Errors) -> ErrorRules:
    """Checks and combines both options. Raises InvalidRequest."""
    retried = None
    if retry_on is not None:
        retried = {
            kind: None if backoff is None else validation.backoff(backoff)
            for kind, backoff in (
                retry_on.items()
                if isinstance(retry_on, Mapping)
                else dict.fromkeys(_kinds(retry_on, "retry_on")).items()
            )
        }
        _kinds(list(retried), "retry_on")
    return ErrorRules(retried, _kinds(fail_on, "fail_on"))


def _kinds(errors: Any, what: str) -> Sequence[type[BaseException]]:
    kinds = tuple(errors) if isinstance(errors, Iterable) and not isinstance(errors, type | str) else (errors,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidRequest(f"{what} has classes of errors, not {kind!r:.80}")
    return kinds
