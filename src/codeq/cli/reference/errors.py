"""The page of errors, made of the classes, the table of statuses and the drawn trees."""

import re

from codeq import errors as public
from codeq.cli.pages.sentences import paragraphs, table
from codeq.domain import errors as domain
from codeq.domain.errors import CodeqError
from codeq.wire import errors as wire

INTRODUCTION = """# Errors

Every error that codeQ raises on purpose is a `codeq.CodeqError` with a `code`. The code is the same in Python
(`fault.code`), over HTTP (`{"error": "<text>", "code": "<code>"}`) and in the answers of batches. Catch by class:

```python
import codeq

try:
    codeq.Client("http://127.0.0.1:9", "dev-token", retry_for=0).enqueue("resize", {"image": "cat.png"})
except codeq.errors.Unreachable as fault:
    print(fault.code)  # unreachable
```

A parent in the last column catches its children: `except codeq.errors.Refused` catches every refusal of a move.
Those of `codeq.errors` are listed with their class; the others a client sees only if it was not made with the SDK.
A 5xx, a timeout or a lost connection means *unknown*: the call may have been carried out. The SDK repeats it
([what a lost connection means](../guides/producers.md#when-the-connection-is-lost)). This page is made by
`codeq reference errors`.
"""

ADVICE: dict[type[CodeqError], str] = {
    domain.InvalidRequest: "Mend the call; the text names the field and the limit. Repeating it does not help.",
    domain.IdempotencyMismatch: "Use a new key for a new task.",
    domain.NotFound: "Check the id and the tenant of the token; ended tasks are forgotten after their retention.",
    domain.NotOwner: "Stop working on the task and drop the result: someone else has it.",
    domain.NotInProgress: "Drop the result: the task has ended, or its lease expired and it waits for its next try.",
    domain.Cancelled: "Stop working on the task.",
    domain.NotDead: "Nothing; it may have been replayed already.",
    domain.AlreadyFinal: "Nothing; there is nothing left to cancel.",
    domain.NotFinal: "Cancel it first.",
    domain.StaleTask: "Look at the task again, then repeat the call.",
    domain.StoreError: "Read the text: it names the directory and what is wrong with it.",
    domain.StoreBusy: "Wait and repeat; the SDK does. If it lasts, the disk is too slow for the load.",
    domain.StoreFull: "Free disk space. Tasks that run can still be finished.",
    domain.StoreFailed: "Start the process again (a server exits with 70 by itself); everything acknowledged is there.",
    domain.StoreClosed: "Open the queue again; on a server, it is stopping.",
    domain.StoreLocked: "Close the other process: one process owns a data directory.",
    domain.StoreCorrupt: "Restore a backup. Do not delete files.",
    domain.StoreMismatch: "Open it with the version, or the number of shards, that the text names.",
    wire.Unauthenticated: "Send a good token: `token=`, `CODEQ_TOKEN`. A function as `token` is asked for a new one.",
    wire.Forbidden: "Use a token with the role or the scope that the text names.",
    wire.NoRoute: "Check the path; `/docs` on the server lists all.",
    wire.WrongMethod: "The header `Allow` says which methods there are.",
    wire.TooSlow: "Send headers and body in one go.",
    wire.TooLarge: "Send less, or smaller batches; large data belongs elsewhere, with a reference in the payload.",
    wire.WrongMedia: "Send `application/json`, or `application/msgpack` where it is taken.",
    wire.RateLimited: "Wait for `Retry-After` seconds; the SDK does.",
    wire.Unavailable: "Wait and repeat; the SDK does.",
    wire.Unreachable: "The SDK has tried for `retry_for` seconds. Check address and server, then repeat the call.",
    wire.Unexpected: "Look at what stands between client and server; `code` is what was answered.",
    public.TaskFailed: "Look at `fault.kept`: the task with its error, payload and result.",
    public.WaitTimeout: "Wait again, or ask later with `get`. The task is not affected.",
}

_LINE = re.compile(r"[│├└─ ]+([A-Z]\w+) +(?:(\d{3}) )?([a-z-]+)? {2,}(.*)")


def page() -> str:
    groups = {
        "Of the queue": [kind for kind in ADVICE if kind.__module__ == domain.__name__],
        "Of the way there": [kind for kind in ADVICE if kind.__module__ == wire.__name__],
        "Of waiting for a result": [public.TaskFailed, public.WaitTimeout],
    }
    sections = [f"## {title}\n\n{_table(kinds)}\n" for title, kinds in groups.items()]
    return "\n".join([INTRODUCTION, *sections])


def kinds() -> set[type[CodeqError]]:
    """Every error that has a code of its own."""
    found: set[type[CodeqError]] = set()
    waiting: list[type[CodeqError]] = [CodeqError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__ in (domain.__name__, wire.__name__):
            found.add(kind)
    return found - {CodeqError, domain.Refused, wire.EdgeError}


def _table(group: list[type[CodeqError]]) -> str:
    meanings = _drawn(domain.__doc__) | _drawn(wire.__doc__)
    rows = [
        (
            f"`{kind.code}`",
            f"`{kind.__name__}`",
            str(wire.STATUS.get(kind, "")),
            meanings.get(kind.__name__) or paragraphs(kind).rstrip("."),
            ADVICE[kind],
            f"`{_parent(kind)}`",
        )
        for kind in group
    ]
    return table("code", "class", "status", "meaning", "what to do", "parent", rows=rows)


def _parent(kind: type[CodeqError]) -> str:
    """The nearest one that can be caught by name."""
    return next(parent.__name__ for parent in kind.__mro__[1:] if parent.__name__ in public.__all__)


def _drawn(text: str | None) -> dict[str, str]:
    """By class, what the tree in a docstring says of it."""
    return {found[1]: found[4].strip() for found in map(_LINE.match, (text or "").splitlines()) if found}
