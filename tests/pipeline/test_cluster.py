"""Spark on a cluster: a master, two workers, and executors that are killed in the middle of their work."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
import psutil  # type: ignore[import-untyped]
import pytest
from tests.pipeline.cluster import ANSWER_S_MAX, BIN, Cluster, Driver, start_cluster, start_driver
from tests.pipeline.event_log import enqueue, log_of
from tests.s3_servers import BUCKET, SECRET, start_moto
from tests.server.server_process import Caller, Tenant, answered, at, command_line, eventually

from codeq.pipeline import last_write_summary
from codeq.server.dev import ALL_SCOPES
from codeq.wire import paths

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.cluster]

AT_ONCE = {"policy": {"backoff": {"policy": "fixed", "baseSeconds": 0, "maxSeconds": 0}, "onExpiry": "immediate"}}
"""A task whose lease has expired is ready again at once."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def driver(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    submit = (BIN / "spark-submit", "--master", cluster.url)
    with start_driver(tmp_path_factory.mktemp("driver"), *submit, env=cluster.env) as running:
        yield running


@pytest.fixture
def options(tenant: Tenant, options_for: Callable[..., dict[str, str]]) -> dict[str, str]:
    """The options of a job with all scopes of the tenant."""
    scopes = [scope for scope in ALL_SCOPES if scope != "codeq:platform"]
    return options_for(Caller(tenant.server, tenant.server.token(tenant.name, "worker", scopes=scopes)))


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """The path of a file that exists once an executor was killed; checked after the test."""
    file = tmp_path / "killed"
    yield str(file)
    assert file.exists()


def log(tenant: Tenant) -> list[tuple[Any, ...]]:
    return sorted((event["shard"], event["seq"], event["move"], event["taskId"]) for event in log_of(tenant.admin))


def moves(tenant: Tenant) -> Counter[str]:
    return Counter(event["move"] for event in log_of(tenant.admin))


def shown_by_java(program: int) -> list[str]:
    """Returns the arguments of the Java process of a program, which every user of the machine can read."""
    child: list[psutil.Process] = eventually(
        lambda: [one for one in psutil.Process(program).children() if one.name() == "java"], 60
    )
    return [part for argument in child[0].cmdline() for part in argument.split("=")]


def test_the_command_line_builds_the_lake_on_a_cluster(cluster: Cluster, tenant: Tenant, tmp_path: Path) -> None:
    for n in range(4):
        tenant.ended(result=n)
    enqueue(tenant, 3)
    token = tenant.server.token(tenant.name, "admin")
    env = {**cluster.env, "CODEQ_URL": tenant.server.base, "CODEQ_TOKEN": token}
    before = cluster.programs
    asked = ["pipeline", "run", "--lake", "lake", "--master", cluster.url, "--json"]
    with (tmp_path / "said").open("w") as said, (tmp_path / "log").open("w") as errors:
        run = subprocess.Popen(command_line(*asked), cwd=tmp_path, env=env, stdout=said, stderr=errors)
        try:
            assert token not in shown_by_java(run.pid)
            assert run.wait(ANSWER_S_MAX) == 0, (tmp_path / "log").read_text()[-4000:]
        finally:
            run.kill()
            run.wait()
    assert len(cluster.programs - before) == 1
    assert json.loads((tmp_path / "said").read_text())["events"] >= 15
    tables = {
        name: deltalake.DeltaTable(tmp_path / "lake" / name).to_pyarrow_table().to_pylist()
        for name in ("bronze_events", "silver_tasks", "gold_throughput")
    }
    bronze = [(row["shard"], row["seq"], row["move"], row["task_id"]) for row in tables["bronze_events"]]
    assert sorted(bronze) == log(tenant)
    assert Counter(row["outcome"] for row in tables["silver_tasks"]) == {"completed": 4, "live": 3}
    assert sum(row["completes"] for row in tables["gold_throughput"]) == 4


def executors() -> list[psutil.Process]:
    """The Java processes in which executors of the cluster run."""
    started = psutil.Process().children(recursive=True)
    return [one for one in started if "CoarseGrainedExecutorBackend" in " ".join(command_of(one))]


def command_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return list(process.cmdline())
    return []


def kill_with_children(program: int) -> None:
    found = psutil.Process(program)
    for process in [*found.children(recursive=True), found]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_lake_in_a_bucket_survives_a_killed_executor_and_a_killed_driver(
    cluster: Cluster, tenant: Tenant, tmp_path: Path
) -> None:
    with start_moto(tmp_path) as s3:

        def rows(name: str) -> list[dict[str, Any]]:
            path = f"s3://{BUCKET}/lake/{name}"
            if not deltalake.DeltaTable.is_deltatable(path, s3):
                return []
            found: list[dict[str, Any]] = deltalake.DeltaTable(path, storage_options=s3).to_pyarrow_table().to_pylist()
            return found

        token = tenant.server.token(tenant.name, "admin")
        env = {**cluster.env, **s3, "CODEQ_URL": tenant.server.base, "CODEQ_TOKEN": token}
        asked = ["pipeline", "run", "--lake", f"s3://{BUCKET}/lake", "--master", cluster.url]
        enqueue(tenant, 300, "later")
        with (tmp_path / "log").open("w") as said:
            run = subprocess.Popen(
                command_line(*asked, "--every", "0"), cwd=tmp_path, env=env, stdout=said, stderr=said
            )
            try:
                assert SECRET not in shown_by_java(run.pid)
                first: list[psutil.Process] = eventually(executors, ANSWER_S_MAX)
                assert not [part for one in first for part in command_of(one) if SECRET in part]
                eventually(lambda: rows("bronze_events"), ANSWER_S_MAX, every_s=0.5)
                first[0].kill()  # while silver or gold is made
                for n in range(5):
                    tenant.ended(result=n)
                eventually(lambda: len(rows("bronze_events")) == len(log(tenant)), ANSWER_S_MAX, every_s=0.5)
                assert run.poll() is None, (tmp_path / "log").read_text()[-4000:]
                enqueue(tenant, 100, "later")
                eventually(lambda: len(rows("bronze_events")) == len(log(tenant)), ANSWER_S_MAX, every_s=0.5)
            finally:
                kill_with_children(run.pid)  # between bronze and the tables that follow it
                run.wait()
        enqueue(tenant, 1, "later")
        done = subprocess.run(
            command_line(*asked, "--once", "--audit"), cwd=tmp_path, env=env, capture_output=True, text=True,
            timeout=ANSWER_S_MAX, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        bronze = [(row["shard"], row["seq"], row["move"], row["task_id"]) for row in rows("bronze_events")]
        assert sorted(bronze) == log(tenant)
        assert Counter(row["outcome"] for row in rows("silver_tasks")) == {"completed": 5, "live": 401}
        assert sum(row["completes"] for row in rows("gold_throughput")) == 5
        texts = [(tmp_path / "log").read_text(), done.stdout, done.stderr]
        assert not [text for text in texts if SECRET in text]


def test_a_read_gives_every_event_once_though_an_executor_is_killed(
    driver: Driver, tenant: Tenant, options: dict[str, str], mark: str
) -> None:
    enqueue(tenant, 60)
    found = driver.ask("read", options={**options, "minPartitions": "6"}, mark=mark)
    assert sorted(found) == log(tenant)


def test_a_write_enqueues_nothing_twice_though_an_executor_is_killed(
    driver: Driver, tenant: Tenant, options: dict[str, str], mark: str
) -> None:
    rows, summary = 2000, f"{mark}.json"
    asked = {**options, "command": "ship", "batchSize": "50", "summaryPath": summary}
    driver.ask("write", options=asked, rows=rows, mark=mark)
    assert moves(tenant) == {"enqueue": rows}
    done = last_write_summary(summary)
    assert done.enqueued + done.deduplicated == rows
    assert done.deduplicated > 0  # so the executor was killed in the middle


@pytest.mark.parametrize("kind", ["pandas", "dataframe"])
def test_every_task_is_completed_once_though_an_executor_is_killed(
    driver: Driver, tenant: Tenant, options: dict[str, str], mark: str, kind: str
) -> None:
    tasks = 40
    made = [{"command": "work", "payload": {"n": n}} for n in range(tasks)]
    answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": made}), 200)
    tenant.admin.put(f"{paths.BASE}/admin/topics/work", AT_ONCE)
    who = {"command": "work", "endpoint": options["endpoint"], "token_file": options["tokenFile"]}
    for _ in range(20):
        driver.ask("do_tasks", **who, kind=kind, batch=8, lease=2, wait=1, mark=mark)
        if moves(tenant)["complete"] >= tasks:
            break
    done = moves(tenant)
    assert done["complete"] == tasks
    assert done["expire"] + done["abandon"] > 0  # those that the executor held
    ids = {event["taskId"] for event in log_of(tenant.admin) if event["move"] == "complete"}
    results = [answered(tenant.admin.get(at(paths.RESULT, task_id)), 200)["result"]["result"] for task_id in ids]
    assert sorted(int(result) for result in results) == list(range(tasks))
