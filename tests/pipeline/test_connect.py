"""Source, sink, worker and lake through Spark Connect, where the program has no Java."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pipeline.cluster import environment_in, start_driver
from tests.pipeline.event_log import log_of
from tests.server.server_process import Caller, Tenant, run_codeq

from codeq.cli.errors import ExitCode
from codeq.server.dev import ALL_SCOPES

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.cluster]


def test_everything_works_through_spark_connect(
    tenant: Tenant, options_for: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    scopes = [scope for scope in ALL_SCOPES if scope != "codeq:platform"]
    options = options_for(Caller(tenant.server, tenant.server.token(tenant.name, "worker", scopes=scopes)))
    who = {"command": "ship", "endpoint": options["endpoint"], "token_file": options["tokenFile"]}
    env = {**environment_in(tmp_path), "SPARK_REMOTE": "local[2]"}
    with start_driver(tmp_path, sys.executable, env=env) as driver:
        assert driver.ask("width") == 2
        driver.ask("write", options={**options, "command": "ship"}, rows=60)
        assert driver.ask("do_tasks", **who, kind="dataframe", batch=10, parallelism=1, wait=0) == 10
        assert driver.ask("do_tasks", **who, wait=0) == 50
        events = driver.ask("read", options=options)
        folder = str(tmp_path / "lake")
        assert driver.ask("update_lake", folder=folder, options=options) > 0
        assert driver.ask("audited", folder=folder)
    log = [(event["shard"], event["seq"], event["move"], event["taskId"]) for event in log_of(tenant.admin)]
    assert sorted(events) == sorted(log)
    assert Counter(move for _, _, move, _ in log) == {"enqueue": 60, "claim": 60, "complete": 60}


def test_the_command_line_says_why_it_does_not_use_spark_connect() -> None:
    run = run_codeq("pipeline", "run", "--master", "sc://127.0.0.1", env={"CODEQ_TOKEN": "any"})
    assert run.returncode == ExitCode.USAGE
    assert "token" in run.stderr
