"""`codeq enqueue`: one task, a file, a stream of lines."""

import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from tests.cli.shell import Cli
from tests.server.server_process import eventually


def test_the_id_is_all_that_is_printed(cli: Cli) -> None:
    task_id = cli.enqueued("resize", '{"image": "cat.png"}', "--priority", "5", "--max-attempts", "2")
    task = cli.ok("task", "show", task_id, "--json").json
    assert (task["id"], task["command"], task["payload"]) == (task_id, "resize", {"image": "cat.png"})
    assert (task["priority"], task["maxAttempts"], task["status"]) == (5, 2, "PENDING")


def test_json_answers_the_task_with_the_names_of_the_wire(cli: Cli) -> None:
    task = cli.ok("enqueue", "resize", "[1, 2]", "--json").json
    assert task["status"] == "PENDING"
    assert {"id", "tenantId", "createdAt", "maxAttempts", "payloadBytes", "lastMove", "dead"} <= set(task)


def test_without_a_payload_it_is_an_empty_object(cli: Cli) -> None:
    [task_id] = cli.ok("enqueue", "work").out.split()
    assert cli.ok("task", "show", task_id, "--json").json["payload"] == {}


def test_a_payload_comes_from_a_file_or_from_standard_input(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{\n "from": "file"\n}\n')
    for arguments, given in (
        (("--file", str(file)), None),
        (("-",), file.read_text()),
        (("-f", "-"), file.read_text()),
    ):
        task_id = cli.ok("enqueue", "work", *arguments, stdin=given).out.strip()
        assert cli.ok("task", "show", task_id, "--json").json["payload"] == {"from": "file"}


def test_a_payload_that_is_no_json_is_a_mistake_of_the_user(cli: Cli) -> None:
    done = cli("enqueue", "work", "hello")
    assert done.code == 2
    assert done.err.startswith("codeq: the payload is not JSON")


def test_a_payload_given_twice_is_a_mistake_of_the_user(cli: Cli, tmp_path: Path) -> None:
    assert cli("enqueue", "work", "1", "--file", str(tmp_path / "x")).code == 2


def test_a_file_that_is_not_there_is_not_found(cli: Cli, tmp_path: Path) -> None:
    done = cli("enqueue", "work", "--file", str(tmp_path / "none.json"))
    assert done.code == 3
    assert "none.json: No such file" in done.err


def test_a_name_that_no_command_has_is_said_in_words(cli: Cli) -> None:
    done = cli("enqueue", "two words", "1")
    assert done.code == 2
    assert "letters, digits" in done.err


def test_a_task_waits_for_its_delay_or_its_moment(cli: Cli) -> None:
    soon = datetime.now(UTC) + timedelta(hours=2)
    for option, value, wait_s in (("--delay", "10m", 600), ("--run-at", soon.isoformat(), 7200)):
        task = cli.ok("task", "show", cli.enqueued("later", "1", option, value), "--json").json
        waits_s = datetime.fromisoformat(task["visibleAt"]).timestamp() - time.time()
        assert wait_s - 60 < waits_s <= wait_s + 1


def test_a_duration_or_moment_that_cannot_be_read_names_its_option(cli: Cli) -> None:
    for option, value in (("--delay", "soon"), ("--run-at", "tomorrow"), ("--run-at", "2026-01-31T12:00:00")):
        done = cli("enqueue", "work", "1", option, value)
        assert done.code == 2
        assert option in done.err
    assert cli("enqueue", "work", "1", "--delay", "1s", "--run-at", "2026-01-31T12:00:00Z").code == 2


def test_enqueues_with_one_key_are_one_task(cli: Cli) -> None:
    first, second = (cli.enqueued("work", "1", "--idempotency-key", "k") for _ in range(2))
    assert first == second


def test_a_webhook_is_kept_with_the_task(cli: Cli) -> None:
    task_id = cli.enqueued("work", "1", "--webhook", "https://example.org/hook")
    stored = cli.server.request("GET", f"/v1/codeq/tasks/{task_id}", token=cli.env["CODEQ_TOKEN"]).json()
    assert stored["webhook"] == "https://example.org/hook"


def test_every_line_is_a_task_with_its_payload_as_written(cli: Cli) -> None:
    lines = "".join(f'{{"n": {number}}}\n' for number in range(1200))
    done = cli.ok("enqueue", "bulk", "-", "--lines", stdin=lines + "\n\n")
    assert done.out == "enqueued 1200 tasks, refused 0 lines\n"
    assert cli.ok("queue", "show", "bulk", "--json").json["ready"] == 1200
    claimed = cli.ok("claim", "bulk", "--limit", "1000", "--json").json["tasks"]
    assert {"n": 0} in [task["payload"] for task in claimed]


def test_a_bad_line_is_told_by_its_number_and_stops_no_other(cli: Cli) -> None:
    lines = '{"id": 1}\nnot json\n\n{"id": true}\n[1]\n{"id": "two"}\n'
    done = cli("enqueue", "bulk", "-", "--lines", "--key-field", "id", "--json", stdin=lines)
    assert (done.code, done.json) == (1, {"enqueued": 2, "refused": 3})
    refusals = [msgspec.json.decode(line) for line in done.err.splitlines()]
    assert [(refusal["line"], refusal["code"]) for refusal in refusals] == [
        (2, "invalid"),
        (4, "invalid"),
        (5, "invalid"),
    ]
    human = cli("enqueue", "bulk", "-", "--lines", stdin="oops\n")
    assert (human.code, human.err.startswith("codeq: line 1: not JSON")) == (1, True)


def test_a_line_that_the_server_refuses_is_told_by_its_number(cli: Cli) -> None:
    lines = '{"id": 1, "v": 1}\n{"id": 1, "v": 2}\n'  # one key, two tasks
    done = cli("enqueue", "bulk", "-", "--lines", "--key-field", "id", "--json", stdin=lines)
    assert (done.code, done.json) == (1, {"enqueued": 1, "refused": 1})
    assert (done.error["line"], done.error["code"]) == (2, "idempotency-mismatch")


def test_a_repeated_import_enqueues_nothing_twice(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(f'{{"id": "k{number}"}}\n' for number in range(700)))
    for _ in range(2):
        cli.ok("enqueue", "bulk", "--file", str(file), "--lines", "--key-field", "id")
    assert cli.ok("queue", "show", "bulk", "--json").json["ready"] == 700


def test_lines_take_the_options_of_tasks(cli: Cli) -> None:
    cli.ok("enqueue", "bulk", "-", "--lines", "--priority", "7", "--delay", "1h", "--max-attempts", "2", stdin="1\n2\n")
    assert cli.ok("queue", "show", "bulk", "--json").json["delayed"] == 2
    [task, _] = cli.ok("task", "list", "--command", "bulk", "--json").json["tasks"]
    assert (task["priority"], task["maxAttempts"]) == (7, 2)


def test_options_that_make_no_sense_together_are_refused(cli: Cli) -> None:
    assert cli("enqueue", "bulk", "-", "--lines", "--idempotency-key", "k", stdin="1\n").code == 2
    assert cli("enqueue", "bulk", "1", "--lines").code == 2
    assert cli("enqueue", "bulk", "1", "--key-field", "id").code == 2


def test_an_import_stops_when_the_token_is_refused(cli: Cli) -> None:
    done = cli("enqueue", "bulk", "-", "--lines", "--json", stdin="1\n" * 2000, env={"CODEQ_TOKEN": "wrong"})
    assert (done.code, done.json) == (5, {"enqueued": 0, "refused": 0})


def test_a_person_sees_a_bar_while_lines_are_sent(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("1\n" * 3000)
    with cli.terminal("enqueue", "bulk", "--lines", "--file", str(file)) as screen:
        assert screen.end() == 0
    assert "━" in screen.seen
    assert "enqueued 3000 tasks, refused 0 lines" in screen.seen


def test_lines_come_through_a_pipe(cli: Cli) -> None:
    process = cli.start("enqueue", "bulk", "-", "--lines", stdin=subprocess.PIPE)
    out, err = process.communicate("1\n" * 10, timeout=20)
    assert (process.returncode, out, err) == (0, "enqueued 10 tasks, refused 0 lines\n", "")


def test_an_interrupted_import_says_how_far_it_came(cli: Cli) -> None:
    process = cli.start("enqueue", "bulk", "-", "--lines", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("1\n" * 700)
    process.stdin.flush()
    eventually(lambda: [each["ready"] for each in cli.ok("queue", "list", "--json").json["queues"]] == [700])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "enqueued 700 tasks, refused 0 lines\n")
    assert "--key-field" in err
    assert "Traceback" not in err


def test_a_used_key_prints_its_task_and_says_if_it_is_another(cli: Cli) -> None:
    """(13.24)"""
    first = cli.ok("enqueue", "charge", '{"a": 1, "b": 2}', "--idempotency-key", "k").out
    same = cli.ok("enqueue", "charge", '{"b": 2, "a": 1}', "--idempotency-key", "k")
    assert (same.out, same.err) == (first, "")
    other = cli.ok("enqueue", "charge", "7", "--idempotency-key", "k")
    assert other.out == first
    assert "another command or payload" in other.err
    shown = cli.ok("enqueue", "charge", "7", "--idempotency-key", "k", "--json").json
    assert (shown["id"], shown["replayed"], shown["mismatched"]) == (first.strip(), True, True)
