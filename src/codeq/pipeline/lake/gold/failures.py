"""Gold tables about failures: retries and dead letters."""

import re
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from codeq.domain.task import Move
from codeq.pipeline.lake.gold.adding import added_up
from codeq.pipeline.lake.gold.batch import Goals, GoldBatch, day_of
from codeq.pipeline.lake.gold.merge import Columns, GoldTable, divided, null_for_nan, number_when
from codeq.pipeline.lake.grouping import Rows
from codeq.pipeline.lake.tables import GOLD_DEAD_LETTERS, GOLD_RETRIES, Merge

_SIGNATURE_CHARS_MAX = 200

_SCHEME_OR_URL = r"\b[A-Za-z][A-Za-z0-9+.-]*(://[^\s'\"<>]+)?"
_NAME_OR_MAIL = r"[\w.+-]+(@[\w-]+\.[\w.-]+)?"
"""These match what may begin a URL or an address too, and leave it: searching a long word again from each of its
letters would take a time that grows with the square of its length.
"""


def _instead(text: str) -> Callable[[re.Match[str]], str]:
    return lambda found: text if found[1] else found[0]


_PATTERNS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?s)[\r\n].*", ""),
    (_SCHEME_OR_URL, _instead("<url>")),
    (_NAME_OR_MAIL, _instead("<mail>")),
    (r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\"[^\"]*\"|`[^`]*`|(?<!\w)'[^']*'(?!\w)", "<text>"),
    (r"(?<![\w<])(?:[A-Za-z]:)?(?:[\\/][\w.@%+~-]+)+[\\/]?", "<path>"),
    (r"(?i)\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", "<hex>"),
    (r"(?<![A-Za-z_])[+-]?\d+(?:[.,:]\d+)*", "<n>"),
    (r"\s+", " "),
)
"""Applied in this order: quotes may contain paths, paths contain numbers, and hexadecimal numbers contain decimals."""

_REPLACEMENTS = [(re.compile(pattern, re.ASCII), replacement) for pattern, replacement in _PATTERNS]


def signature(error: str | None) -> str:
    """Returns the part of an error that is the same for many tasks: the first line, with numbers, ids, quotes and paths
    replaced.
    """
    text = (error or "").strip(" ")
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text.strip(" ")[:_SIGNATURE_CHARS_MAX] or "unknown"


def _retries(batch: GoldBatch) -> Iterator[pa.Table]:
    keys = ("tenant", "command", "hour", "day")
    ends, tasks = batch.delivery_sums, batch.task_sums
    moves = {"completes": Move.COMPLETE, "fails": Move.FAIL, "nacks": Move.NACK, "expiries": Move.EXPIRE,
             "abandons": Move.ABANDON, "cancels": Move.CANCEL}  # fmt: skip
    by_move = {name: ends.is_in("ended_by", move) for name, move in moves.items()}
    yield pa.table({
        **{name: ends.column(name) for name in keys},
        "deliveries": ends.column("number"),
        **number_when(ends, **by_move, deaths=ends.numbers("is_dead") == 1),
    })  # fmt: skip
    took = tasks.numbers("took")
    by_number = {f"took_{number}": took == number for number in range(1, 6)}
    yield pa.table({
        **{name: tasks.column(name) for name in keys},
        **number_when(tasks, **by_number, took_6_to_10=(took >= 6) & (took <= 10), took_more=took > 10),
    })  # fmt: skip


def _with_retry_share(rows: Rows, goals: Goals) -> Columns:  # noqa: ARG001
    retried = rows.numbers("nacks") + rows.numbers("expiries") + rows.numbers("abandons")
    share = divided(retried.astype(np.float64), rows.numbers("deliveries").astype(np.float64))
    return {"retry_share": null_for_nan(share)}


def _dead_letters(batch: GoldBatch) -> Iterator[pa.Table]:
    closed = batch.closed_attempts
    dead = Rows(closed.table.filter(pa.array(closed.numbers("is_dead") == 1)))
    few = {"commands": "command", "workers": "worker_id", "task_ids": "task_id", "errors": "error"}
    ended_at = dead.column("ended_at")
    columns = {
        "tenant": dead.column("tenant"),
        "signature": pa.array(dead.by_text("error", signature).tolist(), pa.string()),
        "day": day_of(ended_at),
        "deaths": pa.array(np.ones(len(dead), np.int64)),
        "first_at": ended_at,
        "last_at": ended_at,
        **{name: _lists_of_one(dead, of) for name, of in few.items()},
    }
    ways = {"deaths": Merge.SUM, "first_at": Merge.MIN, "last_at": Merge.MAX, **dict.fromkeys(few, Merge.FEW)}
    limits = {column.name: column.few for column in GOLD_DEAD_LETTERS.columns}
    yield added_up(Rows(pa.table(columns)), ("tenant", "signature", "day"), ways, limits)


def _lists_of_one(rows: Rows, name: str) -> pa.Array:
    """A list with the value of each row; empty for null."""
    values = [[] if value is None else [value] for value in rows.column(name).to_pylist()]
    return pa.array(values, pa.list_(pa.string()))


RETRIES = GoldTable(GOLD_RETRIES, _retries, _with_retry_share)
DEAD_LETTERS = GoldTable(GOLD_DEAD_LETTERS, _dead_letters)
