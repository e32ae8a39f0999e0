"""Spark as a worker: every task is completed once, with functions that are slow, wrong or killed."""

import io
import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.event_log import enqueue, log_of
from tests.server.server_process import Caller, Tenant, answered, at, eventually

from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.errors import InvalidRequest
from codeq.pipeline import work
from codeq.pipeline.client import PipelineClient, ServerOptions
from codeq.pipeline.worker import claim_loop
from codeq.pipeline.worker.claim_loop import ClaimLoop, FunctionRunner, WorkCounts
from codeq.pipeline.worker.work import Progress
from codeq.sdk.jobs import Job
from codeq.wire import paths

Who = Callable[..., dict[str, Any]]


@pytest.fixture
def who(tmp_path: Path) -> Who:
    """Returns a function that gives the arguments of `work` for a caller, with settings for a short run."""

    def arguments(caller: Caller, **more: Any) -> dict[str, Any]:
        file = tmp_path / "worker-token"
        file.write_text(caller.token)
        few: dict[str, Any] = {"wait": 0, "until_idle": True, "parallelism": 2}
        return {"endpoint": caller.server.base, "token_file": str(file), **few, **more}

    return arguments


def moves(tenant: Tenant) -> Counter[str]:
    return Counter(event["move"] for event in log_of(tenant.admin))


def results(tenant: Tenant) -> list[Any]:
    ids = {event["taskId"] for event in log_of(tenant.admin) if event["move"] == "complete"}
    found = [answered(tenant.admin.get(at(paths.RESULT, task_id)), 200)["result"] for task_id in ids]
    return sorted((result["result"] for result in found), key=str)


def double(tasks: Any) -> Any:
    return tasks.assign(result=[json.loads(payload) * 2 for payload in tasks["payload"]])


def test_a_pandas_function_completes_every_task_once(spark: SparkSession, tenant: Tenant, who: Who) -> None:
    enqueue(tenant, 30)
    seen: list[Progress] = []

    def doubled(tasks: Any) -> Any:
        assert list(tasks.columns) == ["id", "command", "payload", "priority", "attempt"]
        return tasks.assign(result=tasks["payload"].map(int) * 2)[["id", "result"]]

    done = work(spark, "work", doubled, batch=7, on_progress=seen.append, **who(tenant.worker))
    assert (done.claimed, done.completed, done.refused, done.returned) == (30, 30, 0, 0)
    assert seen[-1] == done
    assert moves(tenant) == {"enqueue": 30, "claim": 30, "complete": 30}
    assert results(tenant) == sorted((2 * n for n in range(30)), key=str)
    [name] = {event["workerName"] for event in log_of(tenant.admin) if event["move"] == "claim"}
    assert name.startswith(f"spark-{socket.gethostname()}-"), "one executor, with a name of its own"


def test_an_arrow_function_may_fail_tasks_for_good(spark: SparkSession, tenant: Tenant, who: Who) -> None:
    enqueue(tenant, 10)

    def odd_ones_fail(batches: Any) -> Any:
        import pyarrow as pa  # noqa: PLC0415

        for batch in batches:
            payloads = [int(text) for text in batch["payload"].to_pylist()]
            yield pa.table(
                {
                    "id": batch["id"],
                    "result": [f'{{"n": {n}}}' for n in payloads],
                    "status": ["FAILED" if n % 2 else "COMPLETED" for n in payloads],
                    "error": ["odd" if n % 2 else None for n in payloads],
                }
            )

    done = work(spark, "work", odd_ones_fail, kind="arrow", **who(tenant.worker))
    assert (done.completed, done.failed) == (5, 5)
    assert moves(tenant)["fail"] == 5
    assert {event["error"] for event in log_of(tenant.admin) if event["move"] == "fail"} == {"odd"}
    assert results(tenant) == [{"n": n} for n in (0, 2, 4, 6, 8)]


def test_one_bad_task_does_not_harm_the_others(spark: SparkSession, tenant: Tenant, who: Who) -> None:
    enqueue(tenant, 20)

    def choke(tasks: Any) -> Any:
        if (tasks["payload"] == "13").any():
            raise ValueError("thirteen")
        kept = tasks[tasks["payload"] != "7"]  # no row for this task
        return kept.assign(result=["not JSON" if payload == "5" else "1" for payload in kept["payload"]])

    done = work(spark, "work", choke, rounds_max=1, **who(tenant.worker))
    assert (done.claimed, done.completed, done.returned) == (20, 17, 3)
    reasons = {event["error"] for event in log_of(tenant.admin) if event["move"] == "nack"}
    assert {"ValueError: thirteen", "the function gave no row for this task"} < reasons
    assert any(reason.startswith("the result is not JSON") for reason in reasons)


def test_odd_results_end_no_task_but_their_own(spark: SparkSession, tenant: Tenant, who: Who) -> None:
    enqueue(tenant, 7)

    def odd(tasks: Any) -> Any:
        import numpy as np  # noqa: PLC0415
        import pandas as pd  # type: ignore[import-untyped]  # noqa: PLC0415

        if (tasks["payload"] == "6").any():
            raise OSError("cannot open 'caf\udce9.csv'")  # the name of a file that is not UTF-8
        chosen = {
            "0": np.array([1.5, 2.5]), "1": pd.NA, "2": np.float32(0.5), "3": "x", "4": "x" * (40 << 20), "5": 7,
        }  # fmt: skip
        status = ["FAILED" if payload == "3" else float("nan") for payload in tasks["payload"]]
        results = [chosen[payload] if payload != "3" else None for payload in tasks["payload"]]
        results = [f'"{result}"' if isinstance(result, str) else result for result in results]
        return tasks.assign(result=pd.Series(results, dtype=object), status=status, error="half a character: \udce9")

    done = work(spark, "work", odd, rounds_max=1, **who(tenant.worker, parallelism=1))
    assert (done.completed, done.failed, done.returned) == (4, 1, 2)
    assert results(tenant) == sorted(([1.5, 2.5], None, 0.5, 7), key=str)
    reasons = {event["move"]: event["error"] for event in log_of(tenant.admin) if event["error"]}
    assert reasons["fail"] == "half a character: \\udce9"
    nacked = sorted(event["error"] for event in log_of(tenant.admin) if event["move"] == "nack")
    assert nacked[0] == "OSError: cannot open 'caf\\udce9.csv'"
    assert nacked[1].startswith("the result has 41943042 bytes as JSON")


def test_a_function_of_dataframes_uses_all_of_spark(spark: SparkSession, tenant: Tenant, who: Who) -> None:
    enqueue(tenant, 25)

    def squares(tasks: DataFrame) -> DataFrame:
        answers = tasks.selectExpr("id", "to_json(named_struct('square', int(payload) * int(payload))) as result")
        return answers.where("result != '{\"square\":9}'").repartition(2)

    done = work(spark, "work", squares, kind="dataframe", rounds_max=1, **who(tenant.worker, batch=20))
    assert (done.claimed, done.completed, done.returned) == (25, 24, 1)
    assert moves(tenant) == {"enqueue": 25, "claim": 25, "complete": 24, "nack": 1}
    assert {"square": 16} in results(tenant)


def test_a_function_of_dataframes_that_raises_hands_everything_back(
    spark: SparkSession, tenant: Tenant, who: Who
) -> None:
    enqueue(tenant, 5)

    def broken(_: DataFrame) -> DataFrame:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work(spark, "work", broken, kind="dataframe", **who(tenant.worker))
    assert moves(tenant) == {"enqueue": 5, "claim": 5, "abandon": 5}


def test_leases_are_kept_while_the_function_runs(spark: SparkSession, tenant: Tenant, who: Who) -> None:
    enqueue(tenant, 4)

    def slow(tasks: Any) -> Any:
        import time  # noqa: PLC0415

        time.sleep(3.5)
        return tasks.assign(result=1)

    done = work(spark, "work", slow, lease=1.5, **who(tenant.worker, parallelism=1))
    assert (done.completed, done.refused) == (4, 0)
    assert moves(tenant) == {"enqueue": 4, "claim": 4, "complete": 4}


def test_the_leases_of_more_tasks_than_a_batch_has_are_kept_and_a_cancelled_one_is_noticed(
    tenant: Tenant, tmp_path: Path
) -> None:
    tasks = BATCH_TASKS_MAX + 200
    for number in (BATCH_TASKS_MAX, tasks - BATCH_TASKS_MAX):
        enqueue(tenant, number)
    (tmp_path / "token").write_text(tenant.worker.token)
    server = ServerOptions(endpoint=tenant.server.base, token_file=str(tmp_path / "token"))
    loop = ClaimLoop(server=server, command="work", batch=BATCH_TASKS_MAX, lease_s=3, wait_s=0, round_s=1)
    with closing(PipelineClient(server)) as client:
        jobs = [*loop.claim(client), *loop.claim(client)]
    assert len(jobs) == tasks
    with loop.heartbeats(jobs) as lost:
        answered(tenant.producer.post(at(paths.CANCEL, jobs[7].id)), 200)
        eventually(lambda: lost == {jobs[7].id}, 30)
        until = [tenant.task(job.id)["leaseUntil"] for job in (jobs[0], jobs[-1])]
        eventually(
            lambda: all(
                tenant.task(job.id)["leaseUntil"] > time for job, time in zip((jobs[0], jobs[-1]), until, strict=True)
            ),
            30,
        )
    assert moves(tenant) == {"enqueue": tasks, "claim": tasks, "cancel": 1}
    assert lost == {jobs[7].id}


def test_a_task_whose_lease_ends_with_its_result_is_counted_once(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats go on while results are sent, and those of tasks that are completed already are refused."""
    enqueue(tenant, 3)
    (tmp_path / "token").write_text(tenant.worker.token)
    server = ServerOptions(endpoint=tenant.server.base, token_file=str(tmp_path / "token"))
    loop = ClaimLoop(server=server, command="work", batch=3, lease_s=0.3, wait_s=0, round_s=0)
    submit = claim_loop.submit

    def submit_slowly(client: PipelineClient, jobs: Sequence[Job], *results: Any) -> dict[str, str]:
        verdicts = submit(client, jobs, *results)
        eventually(lambda: all(f"task {job.id} was lost" in said.getvalue() for job in jobs), 30)
        return verdicts

    monkeypatch.setattr(claim_loop, "submit", submit_slowly)
    with redirect_stderr(io.StringIO()) as said:
        counts = loop.run(FunctionRunner(lambda tasks: tasks.assign(result=1), kind="pandas"))
    assert counts == WorkCounts(claimed=3, completed=3)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_executor_loses_nothing_and_answers_nothing_twice(
    spark: SparkSession, tenant: Tenant, who: Who, tmp_path: Path, when: str
) -> None:
    """The Python process of an executor kills itself once: after its claim, or in its second batch."""
    enqueue(tenant, 12)
    policy = {"policy": {"backoff": {"policy": "fixed", "baseSeconds": 0, "maxSeconds": 0}, "onExpiry": "immediate"}}
    tenant.admin.put(f"{paths.BASE}/admin/topics/work", policy)
    mark = str(tmp_path / "killed")

    def die_once(tasks: Any) -> Any:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        is_time = when == "before" or (tasks["payload"] == "8").any()
        if is_time and not Path(mark).exists():
            Path(mark).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return tasks.assign(result=tasks["payload"])

    arguments = who(tenant.worker, parallelism=1, until_idle=False)
    done = Progress()
    for _ in range(20):
        done = work(spark, "work", die_once, batch=4, lease=1, rounds_max=1, **{**arguments, "wait": 1})
        if moves(tenant)["complete"] == 12:
            break
    assert os.path.exists(mark)
    assert done.completed > 0
    assert moves(tenant)["expire"] == 4
    assert moves(tenant)["complete"] == 12
    assert results(tenant) == sorted(range(12), key=str)


def test_what_is_wrong_is_said_before_anything_is_claimed(spark: SparkSession, tenant: Tenant, who: Who) -> None:
    with pytest.raises(InvalidRequest, match="kind is pandas, arrow or dataframe"):
        work(spark, "work", double, kind="row", **who(tenant.worker))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="1 to 1000 tasks"):
        work(spark, "work", double, batch=1001, **who(tenant.worker))
