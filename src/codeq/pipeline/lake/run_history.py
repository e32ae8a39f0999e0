"""What the last runs of a lake did, as its commits tell: events, bytes and seconds, by layer. Reads no rows."""

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from codeq.pipeline.lake.table import Lake, LakeTable, WrittenCommit

COMMITS_READ = 60
"""Commits of each table that are looked at. Those of compaction and of the audit are among them."""


class RunFigures(Struct, frozen=True, kw_only=True):
    """What was written from one commit of bronze to the next."""

    at: datetime
    """When bronze had the events."""
    events: int
    size_bytes: int
    """Of the files that were written, in all layers."""
    seconds: dict[str, float]
    """By layer."""


def last_runs(lake: Lake, count: int) -> list[RunFigures]:
    """Returns the last runs that had new events, the newest first."""
    layers = {"silver": _commits(lake.silver), "gold": _commits(table for _, table in lake.gold)}
    ingested = lake.bronze.history(COMMITS_READ)
    found, until_ms = [], None
    for commit in ingested[:count]:
        mine = {
            layer: [one for one in commits if _is_between(one, commit.at_ms, until_ms)]
            for layer, commits in layers.items()
        }
        written = [commit, *(one for commits in mine.values() for one in commits)]
        seconds = {layer: _elapsed_s(commits) for layer, commits in mine.items() if commits}
        found.append(
            RunFigures(
                at=datetime.fromtimestamp(commit.at_ms / 1000, UTC),
                events=commit.rows,
                size_bytes=sum(one.size_bytes for one in written),
                seconds={"bronze": commit.seconds, **seconds},
            )
        )
        until_ms = commit.at_ms
    return found


def size_by_layer(lake: Lake) -> dict[str, int]:
    """Returns the bytes of the files that the tables consist of."""
    layers = {
        "bronze": [lake.bronze],
        "silver": [*lake.silver, *lake.of_audit],
        "gold": [table for _, table in lake.gold],
    }
    return {
        layer: sum(file.size_bytes for table in tables for file in table.files()) for layer, tables in layers.items()
    }


def _commits(tables: Iterable[LakeTable]) -> list[WrittenCommit]:
    return [commit for table in tables for commit in table.history(COMMITS_READ)]


def _is_between(commit: WrittenCommit, start_ms: int, until_ms: int | None) -> bool:
    return commit.at_ms >= start_ms and (until_ms is None or commit.at_ms < until_ms)


def _elapsed_s(commits: list[WrittenCommit]) -> float:
    """Tables of a layer are written at the same time: from the first start to the last end."""
    start_s = min(commit.at_ms / 1000 - commit.seconds for commit in commits)
    return max(commit.at_ms / 1000 for commit in commits) - start_s
