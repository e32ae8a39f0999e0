"""Every Python example of the pages runs as it stands, against a real server, as a tenant of its own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.code_blocks import ROOT, blocks, environment, program
from tests.server.server_process import Server, start_server

from codeq.server.dev import ALL_SCOPES

FOLDERS = (".", "docs", "docs/guides", "docs/reference")
PAGES = [
    page
    for folder in FOLDERS
    for page in sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("*.md"))
    if blocks(page, "python")
]
PRINTED = re.compile(r"print\(.*\)  # (.*)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.mark.parametrize("page", PAGES)
def test_the_python_examples_of_the_page_run(page: str, server: Server, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(program(page, tmp_path))
    token = server.token(f"page-{PAGES.index(page)}", "worker", scopes=ALL_SCOPES)
    run = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env=environment(tmp_path, CODEQ_URL=server.base, CODEQ_TOKEN=token),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for text in blocks(page, "python"):
        for printed in PRINTED.findall(text):
            assert printed in run.stdout.splitlines(), f"not printed: {printed}\n{run.stdout}{run.stderr}"


def test_the_guides_are_among_the_pages() -> None:
    assert {"README.md", "docs/start.md", "docs/guides/workers.md", "docs/reference/errors.md"} <= set(PAGES)
    assert len(PAGES) >= 10
