"""Every change of state, each as one transaction. All SQL of the application is in this file.

    webhook ──record──▶ waiting ──begin──▶ running ──store───────▶ done
                           ▲                  │ └─────put_back, last──▶ failed
                           └────put_back──────┘

A review has a row in the outbox from the transaction that records it to the transaction that ends it. The relay offers
to the queue what the outbox says is due, and offers it again later as long as the row is there. So the queue may be
down, or lose everything it had: the review is done all the same. A transaction that is rolled back leaves nothing to
offer.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from .reviews import Due, Finding, Priority, Review, ReviewRequest, Status

ATTEMPTS_MAX = 5
BUSY_S_MAX = 10.0
"""How long a transaction waits for that of another process."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS reviews (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    provider    TEXT NOT NULL,
    delivery    TEXT NOT NULL,
    kind        TEXT NOT NULL CHECK (kind IN ('pull', 'push')),
    repository  TEXT NOT NULL,
    subject     TEXT NOT NULL,
    base        TEXT NOT NULL,
    head        TEXT NOT NULL,
    title       TEXT NOT NULL,
    author      TEXT NOT NULL,
    url         TEXT NOT NULL,
    priority    INTEGER NOT NULL,
    status      TEXT NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'running', 'done', 'failed')),
    attempts    INTEGER NOT NULL DEFAULT 0,
    fencing     INTEGER NOT NULL DEFAULT 0,
    error       TEXT NOT NULL DEFAULT '',
    received_ms INTEGER NOT NULL,
    started_ms  INTEGER,
    ended_ms    INTEGER,
    UNIQUE (provider, repository, subject)
) STRICT;
CREATE TABLE IF NOT EXISTS outbox (
    review_id INTEGER PRIMARY KEY REFERENCES reviews (id),
    due_ms    INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS outbox_by_time ON outbox (due_ms);
CREATE TABLE IF NOT EXISTS findings (
    review_id INTEGER NOT NULL REFERENCES reviews (id),
    position  INTEGER NOT NULL,
    fencing   INTEGER NOT NULL,
    file      TEXT NOT NULL,
    line      INTEGER NOT NULL,
    rule      TEXT NOT NULL,
    message   TEXT NOT NULL,
    PRIMARY KEY (review_id, position)
) STRICT, WITHOUT ROWID;
"""
_REVIEWS = "SELECT *, (SELECT count(*) FROM findings WHERE review_id = reviews.id) AS findings FROM reviews"


class Database:
    """The reviews in one SQLite file, for any number of processes on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for writers; stays with the file
            connection.executescript(_SCHEMA)

    def record(self, request: ReviewRequest, now_ms: int) -> tuple[int, bool]:
        """Accepts a request, with its row in the outbox. Returns the id of its review, and whether that is new.

        The same subject is the same review, whatever the delivery ids: signatures do not cover them, who has seen one
        webhook could send it again under many, and GitLab sends what a webhook set off under the id of that webhook.
        """
        values = {**structs.asdict(request), "priority": int(request.priority), "received_ms": now_ms}
        with self.transaction() as tx:
            known = tx.execute(
                "SELECT id FROM reviews WHERE provider = :provider AND repository = :repository AND subject = :subject",
                values,
            ).fetchone()
            if known:
                return known["id"], False
            names = ", ".join(values)
            marks = ", ".join(f":{name}" for name in values)
            row = tx.execute(f"INSERT INTO reviews ({names}) VALUES ({marks}) RETURNING id", values).fetchone()
            tx.execute("INSERT INTO outbox (review_id, due_ms) VALUES (?, ?)", (row["id"], now_ms))
            return row["id"], True

    def due(self, now_ms: int, limit: int = 100) -> list[Due]:
        """Returns reviews that are to be offered to the queue, the most urgent first."""
        query = (
            "SELECT id, priority, attempts FROM outbox JOIN reviews ON id = review_id WHERE due_ms <= ?"
            " ORDER BY priority DESC, id LIMIT ?"
        )
        with self.transaction(writes=False) as tx:
            rows = tx.execute(query, (now_ms, limit)).fetchall()
        return [Due(row["id"], Priority(row["priority"]), row["attempts"]) for row in rows]

    def offered(self, due: Due, again_ms: int, *, is_new: bool) -> None:
        """Notes that the queue has the review. It is offered again at `again_ms`, unless it has ended by then.

        `is_new`: the queue did not have it. If it was begun before, then the queue lost its data, and with it the count
        of its claims: earlier claims are void, and the next may have any number.
        """
        with self.transaction() as tx:
            tx.execute("UPDATE outbox SET due_ms = ? WHERE review_id = ?", (again_ms, due.review_id))
            if is_new and due.attempts:
                tx.execute(
                    "UPDATE reviews SET fencing = 0, status = 'waiting'"
                    " WHERE id = ? AND attempts = ? AND status IN ('waiting', 'running')",
                    (due.review_id, due.attempts),
                )

    def begin(self, review_id: int, fencing: int, now_ms: int) -> Review | None:
        """Begins a try under the number of its claim. Returns None if there is nothing to do: the review has ended, is
        unknown, or was claimed again since. One whose worker died ATTEMPTS_MAX times in the middle ends as FAILED."""
        with self.transaction() as tx:
            died = tx.execute(
                "SELECT id FROM reviews WHERE id = ? AND fencing < ? AND status = 'running' AND attempts >= ?",
                (review_id, fencing, ATTEMPTS_MAX),
            ).fetchone()
            if died:
                error = f"its worker ended in the middle of try {ATTEMPTS_MAX}"
                self._end(tx, self._review(tx, review_id), Status.FAILED, now_ms, error)
                return None
            row = tx.execute(
                "UPDATE reviews SET status = 'running', fencing = ?, attempts = attempts + 1, started_ms = ?"
                " WHERE id = ? AND fencing < ? AND status IN ('waiting', 'running') RETURNING id",
                (fencing, now_ms, review_id, fencing),
            ).fetchone()
            return self._review(tx, review_id) if row else None

    def store(self, review: Review, findings: Sequence[Finding], now_ms: int) -> bool:
        """Ends the review with its findings. Returns False, and stores nothing, if it was claimed again since or has
        ended: of any number of workers that reviewed the same thing, the last to claim it stores its findings, once."""
        rows = [(review.id, at, review.fencing, *structs.astuple(each)) for at, each in enumerate(findings)]
        with self.transaction() as tx:
            if not self._end(tx, review, Status.DONE, now_ms):
                return False
            tx.executemany("INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            return True

    def put_back(
        self, review: Review, error: str, *, now_ms: int, again_ms: int, attempts_max: int = ATTEMPTS_MAX
    ) -> Status:
        """Ends a try that failed. Returns the status of the review, which is FAILED after the last try. Otherwise the
        outbox offers it at `again_ms`, whatever became of the queue."""
        with self.transaction() as tx:
            if review.attempts >= attempts_max:
                self._end(tx, review, Status.FAILED, now_ms, error)
            else:
                is_ours = tx.execute(
                    "UPDATE reviews SET status = 'waiting', error = ?"
                    " WHERE id = ? AND fencing = ? AND status = 'running' RETURNING id",
                    (error, review.id, review.fencing),
                ).fetchone()
                if is_ours:
                    tx.execute("UPDATE outbox SET due_ms = ? WHERE review_id = ?", (again_ms, review.id))
            return self._review(tx, review.id).status

    def reviews(self, limit: int = 100) -> list[Review]:
        """Returns reviews, the newest first."""
        with self.transaction(writes=False) as tx:
            return [_as_review(row) for row in tx.execute(f"{_REVIEWS} ORDER BY id DESC LIMIT ?", (limit,))]

    def counts(self) -> dict[str, int]:
        """Returns the number of reviews by status."""
        with self.transaction(writes=False) as tx:
            return dict(map(tuple, tx.execute("SELECT status, count(*) FROM reviews GROUP BY status")))

    def review(self, review_id: int) -> tuple[Review, list[Finding]] | None:
        with self.transaction(writes=False) as tx:
            if not tx.execute("SELECT 1 FROM reviews WHERE id = ?", (review_id,)).fetchone():
                return None
            query = "SELECT file, line, rule, message FROM findings WHERE review_id = ? ORDER BY position"
            findings = [Finding(*row) for row in tx.execute(query, (review_id,))]
            return self._review(tx, review_id), findings

    @contextmanager
    def transaction(self, *, writes: bool = True) -> Iterator[sqlite3.Connection]:
        """Commits at the end, or rolls everything back. One writer at a time; a power cut undoes no commit."""
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_S_MAX, isolation_level=None)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _end(self, tx: sqlite3.Connection, review: Review, status: Status, now_ms: int, error: str = "") -> bool:
        ended = tx.execute(
            "UPDATE reviews SET status = ?, ended_ms = ?, error = ?"
            " WHERE id = ? AND fencing = ? AND status = 'running' RETURNING id",
            (status, now_ms, error, review.id, review.fencing),
        ).fetchone()
        if ended:
            tx.execute("DELETE FROM outbox WHERE review_id = ?", (review.id,))
        return ended is not None

    def _review(self, tx: sqlite3.Connection, review_id: int) -> Review:
        return _as_review(tx.execute(f"{_REVIEWS} WHERE id = ?", (review_id,)).fetchone())


def _as_review(row: Any) -> Review:
    return msgspec.convert(dict(row), Review)
