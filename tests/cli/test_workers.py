"""`codeq workers`: who works, on what, what each holds, and what nobody works on."""

import os
import re
import socket
from pathlib import Path

from tests.cli.shell import Cli
from tests.server.server_process import eventually

import codeq

PROGRAM = """
import threading
import codeq

worker = codeq.Worker(name="thumbs", concurrency=3)
go_on = threading.Event()

@worker.task("resize")
def resize(payload):
    go_on.wait(60)

@worker.task("crop")
def crop(payload):
    pass
"""


def test_a_worker_is_listed_with_what_it_holds_until_it_stops(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    task_id = cli.enqueued("resize")
    cli.enqueued("mail")
    with cli.start("worker", "run", "program:worker", "--grace", "0", cwd=tmp_path) as running:
        eventually(lambda: [each["holds"] for each in cli.ok("workers", "--json").json["workers"]] == [1])
        answer = cli.ok("workers", "--json").json
        [found] = answer["workers"]
        assert found["name"].startswith("thumbs@")
        assert found["name"].endswith(f":{found['pid']}")
        assert (found["subject"], found["host"], found["version"]) == ("me", socket.gethostname(), codeq.__version__)
        assert (found["slots"], found["commands"], found["tasks"]) == (3, ["resize", "crop"], [task_id])
        assert answer["unattended"] == [{"command": "mail", "ready": 1}]
        told = cli.ok("workers", "--tasks").out.splitlines()
        assert told[0].split() == ["name", "subject", "version", "slots", "holds", "seen", "commands"]
        assert told[1].split()[:5] == [found["name"], "me", codeq.__version__, "3", "1"]
        assert told[1].endswith("resize, crop")
        assert told[2:] == [f"{found['name']} holds {task_id}", "nobody works on mail: 1 task ready"]
        assert cli.ok("workers", "--command", "mail").out.startswith("nobody works on mail\n")
        shown = cli.ok("task", "show", task_id).out
        assert f"{found['name']} (me)" in shown
        assert re.search(rf"claim +IN_PROGRESS +{re.escape(found['name'])} ", shown)
        running.terminate()
        running.communicate(timeout=30)
    assert cli.ok("workers", "--json").json["workers"] == []


def test_no_workers_are_said_in_words(cli: Cli) -> None:
    assert cli.ok("workers").out == "no worker was heard from lately\n"


def test_a_claim_by_hand_is_a_worker_too(cli: Cli) -> None:
    cli.enqueued("work")
    cli.claimed("work")
    [found] = cli.ok("workers", "--json").json["workers"]
    assert (found["pid"], found["commands"], found["holds"]) == (os.getpid(), ["work"], 1)


def test_the_list_is_for_admins(cli: Cli) -> None:
    producer = cli.server.token(cli.tenant, "producer")
    assert cli("workers", "--token", producer).code == 5
