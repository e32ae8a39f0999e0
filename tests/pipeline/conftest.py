"""One Spark session and one server for the whole folder; every test has a tenant of its own."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The tests' own modules are imported by their full name, which `--import-mode=importlib` leaves to the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql import SparkSession
from tests.pipeline.gold_sample import GoldSample, make_gold_sample
from tests.s3_servers import BUCKET, free_port, s3_environment, start_moto
from tests.server.server_process import Caller, Server, Tenant, start_server

import codeq
from codeq.pipeline import make_session
from codeq.sdk.new_tasks import new_tasks

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # warnings of Spark are not ours to fix
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def s3_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def s3(spark: SparkSession, s3_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a bucket that the session reaches."""
    with start_moto(tmp_path_factory.mktemp("s3"), s3_port):
        yield f"s3://{BUCKET}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, s3_port: int) -> Iterator[SparkSession]:
    """A session with three attempts for every Spark task, and settings for many queries of a few rows each.

    Expressions are interpreted: compiling one takes longer than running it on so few rows. The examples, the demo and
    the tests on a cluster run the code that Spark generates.
    """
    os.environ["PIPELINE_TEST_TOKEN"] = "dev-token"  # before Java starts, which passes its environment on
    os.environ.update(s3_environment(s3_port))
    session = make_session(
        "local[2,3]",
        "codeq-tests",
        **{
            # With one tier Java keeps 48 MB for compiled code, and stops compiling once they are full: here, half way.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": False,
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.adaptive.enabled": False,
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def gold_sample() -> GoldSample:
    return make_gold_sample()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Shared: do not stop it."""
    with start_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose single shard has had two hundred events, of which the oldest were trimmed."""
    folder = tmp_path_factory.mktemp("trimmed")

    async def prepare() -> None:
        async with await codeq.open_async(folder / "data", tenant="acme", sweeping=False) as queue:
            for _ in range(4):
                await queue.enqueue_many(new_tasks("work", range(50)))
            await queue.core.store.trim(before_ms=0, keep_max=60)

    asyncio.run(prepare())
    with start_server(folder) as running:
        yield running


@pytest.fixture
def tenant(server: Server) -> Tenant:
    return server.tenant()


@pytest.fixture
def options_for(tmp_path: Path) -> Callable[[Caller], dict[str, str]]:
    """Returns a function that gives the options of a DataFrame for a caller of a server."""

    def options(caller: Caller, **more: Any) -> dict[str, str]:
        file = tmp_path / f"token-{abs(hash(caller.token))}"
        file.write_text(f"{caller.token}\n")
        return {"endpoint": caller.server.base, "tokenFile": str(file), **more}

    return options
