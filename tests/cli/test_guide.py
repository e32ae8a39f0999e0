"""The guide to the command line is run as it stands, against a server as it says."""

import re
import subprocess
from pathlib import Path

from tests.cli.shell import Cli
from tests.server.server_process import command_line, environment

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "command-line.md"


def test_the_guide_runs_from_top_to_bottom(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".codeq").mkdir()
    (tmp_path / ".codeq" / "staging").write_text("token")
    codeq = " ".join(f"'{part}'" for part in command_line())
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'codeq() {{ {codeq} "$@"; }}\n' + "\n".join(blocks)],
        env=environment({**cli.env, "HOME": str(tmp_path)}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for expected in ('{"width":640}', "half done", "enqueued 1000 tasks, refused 0 lines", "would replay 0 dead tasks"):
        assert expected in run.stdout
    assert re.search(r"^bill +1000 ", run.stdout, re.MULTILINE)
