"""`codeq pipeline run` over a longer time: with a token that is renewed, and with events that are deleted."""

import signal
import subprocess
import time
from pathlib import Path

import deltalake
import pytest
from tests.pipeline.cluster import ANSWER_S_MAX
from tests.pipeline.event_log import enqueue, log_of
from tests.server.server_process import Caller, Tenant, command_line, environment, eventually, run_codeq

from codeq.pipeline.lake.table import Lake
from codeq.wire import paths

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.cluster]

TOKEN_S = 30
"""With the minute that a server tolerates for wrong clocks, longer than the start of Java and the first run."""
KEPT = "1s"


def _moves(lake: Path) -> int:
    path = str(lake / "bronze_events")
    if not deltalake.DeltaTable.is_deltatable(path):
        return 0
    return int(deltalake.DeltaTable(path).to_pyarrow_table(columns=["seq"]).num_rows)


def test_a_run_continues_with_a_renewed_token_and_another_deletes_old_events(tenant: Tenant, tmp_path: Path) -> None:
    file, lake = tmp_path / "token", tmp_path / "lake"
    asked = ["pipeline", "run", "--lake", str(lake), "--url", tenant.server.base, "--token-file", str(file)]
    first = Caller(tenant.server, tenant.server.token(tenant.name, "admin", ttl_s=TOKEN_S))
    file.write_text(first.token)
    enqueue(tenant, 3)
    with (tmp_path / "said").open("w") as said:
        run = subprocess.Popen(
            command_line(*asked, "--every", "1s"), cwd=tmp_path, env=environment(), stdout=said, stderr=said
        )
        try:
            eventually(lambda: _moves(lake) == 3, ANSWER_S_MAX)
            file.write_text(tenant.server.token(tenant.name, "admin"))
            eventually(lambda: first.get(paths.EVENTS).status_code == 401, ANSWER_S_MAX, every_s=0.5)
            enqueue(tenant, 2)
            eventually(lambda: _moves(lake) == 5, ANSWER_S_MAX)
            eventually(lambda: len({table.batch for table in Lake(lake).all}) == 1, ANSWER_S_MAX)
            run.send_signal(signal.SIGINT)
            run.wait(ANSWER_S_MAX)
        finally:
            run.kill()
            run.wait()
    time.sleep(1.5)
    enqueue(tenant, 1)
    done = run_codeq(*asked, "--once", "--keep", KEPT, within_s=ANSWER_S_MAX)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(log_of(tenant.admin)) == 6
    assert _moves(lake) == 1
