"""The example of the guide runs as it stands, and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

from tests.redis_servers import RedisNode

GUIDE = Path(__file__).parents[2] / "docs/guides/priority-queue.md"


def test_the_example_of_the_guide_runs(node: RedisNode) -> None:
    node.client().flushall()
    [program] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    printed = [line.removeprefix("# ") for line in program.splitlines() if line.startswith("# ")]
    run = subprocess.run(
        [sys.executable, "-c", program.replace("redis://127.0.0.1:6379/0", node.url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout.splitlines() == printed, run.stderr


def test_the_guide_has_all_22_flaws() -> None:
    assert re.findall(r"^\| (\d+) \|", GUIDE.read_text(), re.MULTILINE) == [str(number) for number in range(1, 23)]
