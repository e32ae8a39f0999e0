"""A task per line of JSON: read, sent in batches, each answer told by its line."""

import json
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from codeq.domain.errors import CodeqError, InvalidRequest

if TYPE_CHECKING:
    from codeq import Client
    from codeq.sdk.batcher import Ticket

BATCH_TASKS = 500
WAITING_MAX = 5000
"""Lines whose answer is still to come. The batcher bounds what it holds; this bounds what we remember of it."""
FATAL = frozenset({"unreachable", "unavailable", "unauthenticated", "forbidden", "failed", "closed", "full"})
"""Refusals that will meet every further line too."""


class Refusal(NamedTuple):
    line: int
    error: str
    code: str

    def as_json(self) -> str:
        return json.dumps({"line": self.line, "error": self.error, "code": self.code})


class Import:
    """Tasks of one command, with the same options but for their payload and key."""

    def __init__(self, command: str, options: dict[str, Any], key_field: str | None) -> None:
        self.command = command
        self.options = options
        self.key_field = key_field
        self.enqueued = 0
        self.refused = 0
        self._waiting: deque[tuple[int, Ticket]] = deque()

    def run(self, client: "Client", source: BinaryIO, *, on_refusal: Callable[[Refusal], None]) -> None:
        """Raises what makes going on useless. Then all that is counted as enqueued is, and what follows is unknown."""
        batcher = client.batcher(size=BATCH_TASKS)
        with _progress(source) as advance:
            for number, line in enumerate(source, 1):
                advance(len(line))
                if not line.strip():
                    continue
                try:
                    ticket = batcher.put(self._order(line))
                except InvalidRequest as fault:
                    self._refuse(Refusal(number, str(fault), fault.code), on_refusal)
                    continue
                self._waiting.append((number, ticket))
                self.flush(on_refusal)
                if len(self._waiting) > WAITING_MAX:
                    self._hear(on_refusal)
            batcher.flush()
            while self._waiting:
                self._hear(on_refusal)
        # Not in a `finally`: closing sends what still waits, which is not wanted once something broke.
        batcher.close()

    def flush(self, on_refusal: Callable[[Refusal], None]) -> None:
        """Count what has been answered by now, without waiting for more."""
        while self._waiting and self._waiting[0][1].is_done:
            self._hear(on_refusal)

    def _order(self, line: bytes) -> Any:
        import msgspec

        from codeq.domain.requests import NewTask

        try:
            payload = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as fault:
            raise InvalidRequest(f"not JSON: {fault}") from None
        return NewTask(
            command=self.command, payload=line.strip(), idempotency_key=self._key(payload), **self.options
        )  # fmt: skip

    def _key(self, payload: Any) -> str | None:
        if self.key_field is None:
            return None
        found = payload.get(self.key_field) if isinstance(payload, dict) else None
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            raise InvalidRequest(f"the field {self.key_field!r} must be a text or a whole number, to be the key")
        return str(found)

    def _hear(self, on_refusal: Callable[[Refusal], None]) -> None:
        number, ticket = self._waiting.popleft()
        try:
            ticket.result()
            self.enqueued += 1
        except CodeqError as fault:
            if fault.code in FATAL:
                raise
            self._refuse(Refusal(number, str(fault), fault.code), on_refusal)

    def _refuse(self, refusal: Refusal, on_refusal: Callable[[Refusal], None]) -> None:
        self.refused += 1
        on_refusal(refusal)


@contextmanager
def _progress(source: BinaryIO) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while a person watches."""
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
