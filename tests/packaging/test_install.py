"""What a user gets: the wheel, installed into an empty environment outside the repository, without and with extras."""

import re
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from codeq import distribution

if TYPE_CHECKING:
    from tests.packaging.conftest import Environment

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"]) - {"dev"}

EMBEDDED = """
import codeq

queue = codeq.open("./queue")
worker = codeq.Worker(queue)

@worker.task("shout")
def shout(payload):
    return payload["text"].upper()

if __name__ == "__main__":
    task = queue.enqueue("shout", {"text": "hello"})
    worker.run(until_idle=True)
    print(queue.wait(task.id))
    queue.close()
"""

WORKER = """
import codeq

worker = codeq.Worker(codeq.Client())

@worker.task("shout")
def shout(payload):
    return payload["text"].upper()
"""


def test_the_base_install_runs_a_queue_in_the_process(base: "Environment") -> None:
    (base.folder / "embedded.py").write_text(EMBEDDED)
    assert base.run("python", "embedded.py").splitlines()[-1] == "HELLO"


def test_the_distribution_has_another_name_than_module_and_command(base: "Environment") -> None:
    assert base.run("codeq", "--version") == f"codeq {distribution.__version__}\n"
    program = "import importlib.metadata as m; print(m.version('codeq-queue'), m.packages_distributions()['codeq'])"
    assert base.run("python", "-c", program) == f"{distribution.__version__} ['codeq-queue']\n"
    assert (PROJECT["name"], PROJECT["version"]) == (distribution.NAME, distribution.__version__)


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("serve --dev", "server"), ("config check", "server"), ("token --tenant a --role worker", "server"),
        ("config reference", "server"), ("demo", "server"), ("pipeline run --lake ./lake", "spark"),
    ],
)  # fmt: skip
def test_a_command_that_needs_an_extra_says_which(base: "Environment", command: str, extra: str) -> None:
    said = base.run("codeq", *command.split(), exit_code=3)
    assert distribution.install_line(extra) in " ".join(said.split())
    assert "Traceback" not in said


def test_the_priority_queue_says_which_extra_it_needs(base: "Environment") -> None:
    said = base.run("python", "-c", "import codeq.priority", exit_code=1)
    assert distribution.install_line("redis") in said


@pytest.mark.parametrize(
    ("extra", "program"),
    [
        ("artifacts", "from codeq.store.object_storage import _obstore; _obstore()"),
        ("redis", "import codeq.store.redis.opening, codeq.priority"),
        pytest.param(
            "spark",
            "from codeq.pipeline import make_session; print(make_session('local[1]').range(3).count())",
            marks=[pytest.mark.cluster, pytest.mark.slow, pytest.mark.spark],
        ),
    ],
)
def test_an_extra_brings_what_it_is_for(install: "Callable[[str], Environment]", extra: str, program: str) -> None:
    install(extra).run("python", "-c", program, within_s=240)


@pytest.mark.slow
def test_the_extra_server_serves_a_worker_of_the_base_install(
    install: "Callable[[str], Environment]", base: "Environment"
) -> None:
    (base.folder / "app.py").write_text(WORKER)
    with serving(install("server")) as url:
        base.variables["CODEQ_URL"] = url
        task_id = base.run("codeq", "enqueue", "shout", '{"text": "hello"}').strip()
        assert "nobody" in base.run("codeq", "queue", "list")
        log = base.run("codeq", "worker", "run", "app:worker", "--until-idle")
        assert f"shout from {url}" in log
        assert "HELLO" in base.run("codeq", "task", "show", task_id)


def test_every_extra_is_installed_by_a_test() -> None:
    assert {"artifacts", "redis", "server", "spark"} == EXTRAS


def test_every_install_line_names_our_distribution() -> None:
    """`pip install codeq` is somebody else's tool."""
    line = re.compile(r"pip install[^\n]*?(?<![\w./-])codeq(?!-queue)[\[' `]")
    texts = [path for folder in ("src", "docs", "examples") for path in (ROOT / folder).rglob("*.*")]
    texts += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
    assert line.search("pip install 'codeq[spark]'")
    found = [
        path.name for path in texts if path.suffix in {".py", ".md", ".yaml", ".toml"} and line.search(path.read_text())
    ]
    assert found == []
    made = [path.name for path in (ROOT / "src").rglob("*.py") if "pip install '" in path.read_text()]
    assert made == ["distribution.py"], "install lines are made in one place"


@contextmanager
def serving(server: "Environment") -> Iterator[str]:
    process = subprocess.Popen(
        [server.bin / "codeq", "serve", "--dev", "--port", "0"],
        cwd=server.folder, env=server.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"codeQ \S+ at (http://127\.0\.0\.1:\d+)", said):
                yield found[1]
                break
        else:
            pytest.fail(said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
