"""Random requests from the server's own description: none may break it, and every response must match it."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.server_process import start_server

SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"


@pytest.mark.slow
def test_schemathesis_finds_no_fault_and_no_answer_that_is_not_described(tmp_path: Path) -> None:
    settings = {"http": {"wait_max_seconds": 0.05}}  # random requests include long polls
    with start_server(tmp_path, settings=settings) as server:
        run = fuzz(server.base, tmp_path)
        log = server.log_text()
    assert run.returncode == 0, run.stdout[-8000:]
    assert "internal error" not in log


def fuzz(base: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            SCHEMATHESIS,
            "run",
            f"{base}/openapi.json",
            "--header",
            "Authorization: Bearer dev-token",
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
            "--max-examples",
            "30",
            "--phases",
            "examples,coverage,fuzzing",
            "--request-timeout",
            "45",
            "--exclude-path",
            "/metrics",
            "--no-color",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
