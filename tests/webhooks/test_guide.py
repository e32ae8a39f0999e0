"""The receiver of the guide, run as it stands: it accepts the server's callbacks once, and no forged one."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
from tests.docs.code_blocks import ROOT
from tests.server.server_process import Tenant, eventually
from tests.webhooks.conftest import SECRET
from tests.webhooks.test_kills import free_port

GUIDE = (ROOT / "docs/guides/webhooks.md").read_text()


def test_the_receiver_of_the_guide_works(tenant: Tenant, tmp_path: Path) -> None:
    code = GUIDE.split("```python\n# receiver.py")[1].split("```")[0]
    (tmp_path / "receiver.py").write_text(f"#{code}")
    port = free_port()
    command = [sys.executable, "-u", "-m", "uvicorn", "receiver:app", "--port", str(port), "--log-level", "warning"]
    env = {**os.environ, "WEBHOOK_SECRETS": f"whsec_{'A' * 44} {SECRET}"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as receiver:
        try:
            url = f"http://127.0.0.1:{port}/codeq"
            eventually(lambda: _status(url), 30)
            assert _status(url) == 401, "a request without signature"
            task = tenant.ended(result={"pages": 12}, webhook=url)
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == f"{task['id']} COMPLETED {{'pages': 12}}\n"
        finally:
            receiver.terminate()


def _status(url: str) -> int:
    try:
        return httpx.post(url, content=b"{}", trust_env=False).status_code
    except httpx.TransportError:
        return 0
