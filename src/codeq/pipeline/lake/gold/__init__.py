"""How each gold table is computed: the partial rows of a batch, and how they are merged into the table.

Imports the descriptions of the tables, and works on Arrow tables; reads and writes no files, and calls no Spark.

partials = gold.THROUGHPUT.partials(GoldBatch(events, attempts, tasks))
rows = gold.THROUGHPUT.merged(existing_rows_of_the_same_days, partials)
"""

from codeq.pipeline.lake.gold.batch import Goals, GoldBatch, Target
from codeq.pipeline.lake.gold.failures import DEAD_LETTERS, RETRIES, signature
from codeq.pipeline.lake.gold.flow import CAPACITY, THROUGHPUT, USAGE, WORKERS, workers_needed
from codeq.pipeline.lake.gold.latency import LATENCY, SERVICE_LEVELS
from codeq.pipeline.lake.gold.merge import GoldTable

__all__ = [
    "ALL", "CAPACITY", "DEAD_LETTERS", "LATENCY", "RETRIES", "SERVICE_LEVELS", "THROUGHPUT", "USAGE", "WORKERS",
    "Goals", "GoldBatch", "GoldTable", "Target", "signature", "workers_needed",
]  # fmt: skip

ALL: tuple[GoldTable, ...] = (THROUGHPUT, LATENCY, SERVICE_LEVELS, RETRIES, DEAD_LETTERS, USAGE, WORKERS, CAPACITY)
