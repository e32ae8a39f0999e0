"""Figures that people ask for, one function per table: what a batch adds, and how it is merged into what is there.

partials = gold.THROUGHPUT.partials(Batch(events, attempts, tasks))
rows = gold.THROUGHPUT.merged(existing_rows_of_those_days, partials)
"""

from codeq.pipeline.lake.gold.batch import Batch, Goals, Target
from codeq.pipeline.lake.gold.failures import DEAD_LETTERS, RETRIES, signature
from codeq.pipeline.lake.gold.flow import CAPACITY, THROUGHPUT, USAGE, WORKERS, workers_needed
from codeq.pipeline.lake.gold.latency import LATENCY, SERVICE_LEVELS
from codeq.pipeline.lake.gold.merge import Gold

__all__ = [
    "ALL", "CAPACITY", "DEAD_LETTERS", "LATENCY", "RETRIES", "SERVICE_LEVELS", "THROUGHPUT", "USAGE", "WORKERS",
    "Batch", "Goals", "Gold", "Target", "signature", "workers_needed",
]  # fmt: skip

ALL: tuple[Gold, ...] = (THROUGHPUT, LATENCY, SERVICE_LEVELS, RETRIES, DEAD_LETTERS, USAGE, WORKERS, CAPACITY)
