"""Spark and codeQ in one notebook: tasks from a DataFrame, Spark as their worker, the event log, the lake, its audit.

    make serve                                                                     # one terminal
    CODEQ_TOKEN=dev-token .venv/bin/python examples/spark_quickstart.py            # another; or cell by cell

Spark starts on this machine, with the Java of the package if there is no other. For clusters see docs/guides/spark.md.
"""

# %% A session. A notebook on a cluster has one already, which is used unchanged.
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from codeq.pipeline import last_write_summary, make_session, register, work
from codeq.pipeline.audit import audit, is_clean, to_text
from codeq.pipeline.client import ServerOptions
from codeq.pipeline.lake.run import run_once
from codeq.pipeline.lake.table import Lake

SERVER = os.environ.get("CODEQ_URL", "http://127.0.0.1:8080")  # the token is read from CODEQ_TOKEN

spark = make_session()
register(spark)

# %% Enqueue: a row is a task. A Spark task that is retried enqueues nothing twice.
texts = spark.range(200).select(f.struct("id", f.expr("repeat('la ', int(id % 7))").alias("text")).alias("payload"))
texts.write.format("codeq").options(endpoint=SERVER, command="count_words").mode("append").save()
print(f"{last_write_summary().enqueued} tasks enqueued")


# %% Work: executors claim tasks in batches, run the function, submit its results, and extend the leases meanwhile.
def count_words(tasks: Any) -> Any:
    """Takes a pandas DataFrame of tasks, and returns one with their results."""
    return tasks.assign(result=[len(json.loads(payload)["text"].split()) for payload in tasks["payload"]])


done = work(spark, "count_words", count_words, endpoint=SERVER, until_idle=True)
print(f"{done.completed} tasks completed in {done.seconds:.1f} s")

# %% Read the event log: one row per move of a task.
events = spark.read.format("codeq-events").options(endpoint=SERVER, subscribe="count_words").load()
events.groupBy("move").count().orderBy("move").show()

# %% The lake: Delta tables of events, deliveries, tasks and figures. A second run ingests only new events.
lake = Lake(Path(tempfile.mkdtemp(prefix="codeq-lake-")))
summary = run_once(spark, lake, ServerOptions(endpoint=SERVER), log=print)
print(f"{summary.events} events are in {lake.folder}")

# %% Gold tables in SQL.
for definition, table in lake.gold:
    table.read(spark).createOrReplaceTempView(definition.table.name)
spark.sql(
    "select command, sum(enqueues) as enqueued, sum(completes) as completed from gold_throughput group by command"
).show()

# %% Audit: ten rules over the whole history.
verdicts = audit(lake.bronze.read(spark))
print(to_text(verdicts))
print("every promise was kept" if is_clean(verdicts) else "a promise was broken")
