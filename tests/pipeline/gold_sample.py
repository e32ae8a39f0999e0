"""One history with its silver and gold rows, shared by the tests of gold and of the report."""

import random
from dataclasses import dataclass

import pyarrow.compute as pc
from tests.pipeline.histories import Row, arrow, churn, cut

from codeq.pipeline.lake import gold, silver
from codeq.pipeline.lake.gold import Goals, GoldBatch, GoldTable, Target
from codeq.pipeline.lake.gold.batch import no_rows
from codeq.pipeline.lake.tables import SILVER_ATTEMPTS, SILVER_TASKS

GOALS = Goals(targets={"mail": Target(15_000, 0.9)}, default=Target(40_000, 0.95), wait_ms=2000)


@dataclass(frozen=True)
class GoldSample:
    """One history as one batch, and the same in three batches."""

    events: list[Row]
    attempts: list[Row]
    tasks: list[Row]
    whole: GoldBatch
    parts: list[GoldBatch]
    rows: dict[str, list[Row]]
    """The rows of each gold table, computed from the one batch."""


def make_gold_sample() -> GoldSample:
    history = churn(3, 400)
    cuts = [once(batch) for batch in cut(history, random.Random(2), 3)]
    [whole] = batches([history.events])
    return GoldSample(
        history.events,
        whole.attempts.filter(~pc.field("is_open")).to_pylist(),
        whole.tasks.to_pylist(),
        whole,
        batches(cuts),
        {of.table.name: rows_of(of, whole) for of in gold.ALL},
    )


def rows_of(table: GoldTable, batch: GoldBatch) -> list[Row]:
    rows = table.merged(table.schema.empty_table(), table.partials(batch), GOALS)
    return rows.to_pylist()  # type: ignore[no-any-return]


def once(batch: list[Row]) -> list[Row]:
    return list({(event["shard"], event["seq"]): event for event in batch}.values())


def batches(cuts: list[list[Row]]) -> list[GoldBatch]:
    attempts, tasks = no_rows(SILVER_ATTEMPTS), no_rows(SILVER_TASKS)
    made = []
    for rows in cuts:
        events = arrow(rows)
        attempts, tasks = (
            carry(so_far.filter(pc.field("is_open")), events).cast(so_far.schema)
            for carry, so_far in ((silver.attempts, attempts), (silver.tasks, tasks))
        )
        made.append(GoldBatch(events, attempts, tasks, GOALS))
    return made
