"""Enqueues one task per line of JSON, in batches, and reports refused lines by their number."""

import json
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from codeq.domain.errors import CodeqError, IdempotencyMismatch, InvalidRequest

if TYPE_CHECKING:
    from codeq import Client, NewTask, Task
    from codeq.sdk.batcher import Ticket

BATCH_TASKS = 500
WAITING_MAX = 5000
"""Lines without an answer. The batcher bounds its own memory; this bounds ours."""
FATAL = frozenset({"unreachable", "unavailable", "unauthenticated", "forbidden", "failed", "closed", "full",
                   "quota-exceeded"})  # fmt: skip
"""Error codes that every further line would get too."""


class RefusedLine(NamedTuple):
    line: int
    error: str
    code: str

    def as_json(self) -> str:
        return json.dumps({"line": self.line, "error": self.error, "code": self.code})


OnRefused = Callable[[RefusedLine], None]


class JsonlImport:
    """Tasks of one command that differ in payload and idempotency key only."""

    def __init__(self, command: str, options: dict[str, Any], key_field: str | None) -> None:
        self.command = command
        self.options = options
        self.key_field = key_field
        self.enqueued = 0
        self.refused = 0
        self._waiting: deque[tuple[int, Ticket]] = deque()

    def run(self, client: "Client", source: BinaryIO, *, on_refused: OnRefused) -> None:
        """Raises an error that would meet every further line. The lines counted until then are enqueued; of the
        following ones it is unknown."""
        batcher = client.batcher(size=BATCH_TASKS)
        with _progress(source) as advance:
            for number, line in enumerate(source, 1):
                advance(len(line))
                if not line.strip():
                    continue
                try:
                    ticket = batcher.put(self._new_task(line))
                except InvalidRequest as fault:
                    self._refuse(RefusedLine(number, str(fault), fault.code), on_refused)
                    continue
                self._waiting.append((number, ticket))
                self.collect_finished(on_refused)
                if len(self._waiting) > WAITING_MAX:
                    self._collect_one(on_refused)
            batcher.flush()
            while self._waiting:
                self._collect_one(on_refused)
        # Not in a `finally`: closing would send what still waits, which is not wanted after an error.
        batcher.close()

    def collect_finished(self, on_refused: OnRefused) -> None:
        """Counts the lines that have been answered, without waiting for others."""
        while self._waiting and self._waiting[0][1].is_done:
            self._collect_one(on_refused)

    def collect_answered(self, on_refused: OnRefused, *, within_s: float) -> None:
        """Counts the lines whose answers come within this time."""
        until_s = time.monotonic() + within_s
        with suppress(TimeoutError):
            while self._waiting:
                self._collect_one(on_refused, within_s=max(0.0, until_s - time.monotonic()))

    def _new_task(self, line: bytes) -> "NewTask":
        import msgspec

        from codeq.domain.requests import NewTask

        try:
            payload = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as fault:
            raise InvalidRequest(f"not JSON: {fault}") from None
        key = self._key(payload)
        return NewTask(command=self.command, payload=line.strip(), idempotency_key=key, **self.options)

    def _key(self, payload: Any) -> str | None:
        if self.key_field is None:
            return None
        found = payload.get(self.key_field) if isinstance(payload, dict) else None
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            raise InvalidRequest(f"the field {self.key_field!r} must be a text or a whole number, to be the key")
        return str(found)

    def _collect_one(self, on_refused: OnRefused, *, within_s: float | None = None) -> None:
        """Waits for the answer to the oldest line. Raises TimeoutError if there is none within the time."""
        number, ticket = self._waiting.popleft()
        try:
            _refuse_mismatch(ticket.task(timeout=within_s))
            self.enqueued += 1
        except CodeqError as fault:
            if fault.code in FATAL:
                raise
            self._refuse(RefusedLine(number, str(fault), fault.code), on_refused)

    def _refuse(self, line: RefusedLine, on_refused: OnRefused) -> None:
        self.refused += 1
        on_refused(line)


def _refuse_mismatch(task: "Task") -> None:
    """Nobody looks at the tasks of an import, so a line that was not enqueued because its key has another task is
    reported."""
    from codeq.sdk.tasks import ReplayedTask

    if isinstance(task, ReplayedTask) and task.is_mismatch:
        raise IdempotencyMismatch(f"its key was used for task {task.id}, which has another command or payload")


@contextmanager
def _progress(source: BinaryIO) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    found = os.fstat(source.fileno())
    total = found.st_size if stat.S_ISREG(found.st_mode) else None
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda read: bar.advance(task, read)
