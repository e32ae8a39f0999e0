"""`codeq task`: show, list, wait, cancel."""

import json
import os

from tests.cli.shell import Cli


def test_a_task_is_shown_with_its_whole_history(cli: Cli) -> None:
    task_id = cli.enqueued("work", '{"image": "cat.png"}')
    _, token = cli.claimed()
    cli.ok("nack", task_id, "--lease-token", token, "--reason", "disk full", "--delay", "0")
    _, token = cli.claimed()
    cli.ok("result", task_id, "--lease-token", token, '{"width": 640}')
    out = cli.ok("task", "show", task_id).out
    moves = [line.split() for line in out.splitlines() if " +" in line or "enqueue" in line]
    assert [row[2] if row[2].isalpha() else row[4] for row in moves] == [
        "enqueue",
        "claim",
        "nack",
        "claim",
        "complete",
    ]
    for expected in (
        task_id,
        "COMPLETED",
        "disk full",
        "token 2",
        f":{os.getpid()}",
        '"image": "cat.png"',
        '"width": 640',
        "in all",
    ):
        assert expected in out


def test_show_in_json_has_payload_result_and_history(cli: Cli) -> None:
    task_id = cli.enqueued("work", '{"a": 1}')
    _, token = cli.claimed()
    cli.ok("result", task_id, "--lease-token", token, "[2]")
    task = cli.ok("task", "show", task_id, "--json").json
    assert (task["payload"], task["result"], task["status"]) == ({"a": 1}, [2], "COMPLETED")
    assert [event["move"] for event in task["history"]] == ["enqueue", "claim", "complete"]
    assert {"taskId", "statusAfter", "leaseToken", "workerId", "at", "seq", "shard"} <= set(task["history"][0])


def test_a_long_payload_is_cut_for_people_alone(cli: Cli) -> None:
    long = json.dumps("x" * 10_000)
    task_id = cli.enqueued("work", long)
    out = cli.ok("task", "show", task_id).out
    assert "more characters; --json shows all" in out
    assert len(out) < 7000
    assert len(cli.ok("task", "show", task_id, "--json").json["payload"]) == 10_000


def test_a_narrow_terminal_misses_no_column(cli: Cli) -> None:
    task_id = cli.dead(reason="the disk is full")
    for columns in ("40", "80", "200"):
        [line] = [line for line in cli.ok("task", "list", env={"COLUMNS": columns}).out.splitlines() if task_id in line]
        assert line.endswith("FAILED dead     0       1/1  the disk is full")


def test_what_others_wrote_cannot_steer_the_terminal(cli: Cli) -> None:
    task_id = cli.dead("work", reason="\x1b[2Jgone\r\x07 and \u202e")
    for arguments in (
        ("task", "show", task_id),
        ("task", "list", "--dead"),
        ("dlq", "list"),
        ("task", "list", "--all"),
    ):
        out = cli.ok(*arguments).out
        assert not {"\x1b", "\r", "\x07", "\u202e"} & set(out), arguments
        assert "\\x1b[2Jgone" in out


def test_no_such_task_is_its_own_exit_code(cli: Cli) -> None:
    for verb in ("show", "cancel", "wait"):
        done = cli("task", verb, "0199a1b2-7c3d-7000-8000-3f2a9c5e1b70", "--json")
        assert (done.code, done.error["code"], done.error["exitCode"], done.out) == (3, "not-found", 3, "")


def test_the_list_filters_by_command_status_error_and_death(cli: Cli) -> None:
    dead = cli.dead("one", reason="disk full")
    waiting = cli.enqueued("two")

    def ids(*arguments: str) -> list[str]:
        return [task["id"] for task in cli.ok("task", "list", "--json", *arguments).json["tasks"]]

    assert sorted(ids()) == sorted([waiting, dead])
    assert ids("--command", "two") == [waiting]
    assert ids("--status", "failed") == [dead]
    assert ids("--status", "IN-PROGRESS") == []
    assert ids("--error", "full") == [dead]
    assert ids("--dead") == [dead]
    assert cli("task", "list", "--status", "lost").code == 1


def test_the_list_stops_at_its_limit_and_says_that_there_is_more(cli: Cli) -> None:
    cli.ok("enqueue", "bulk", "-", "--lines", stdin="1\n" * 30)
    page = cli.ok("task", "list", "--limit", "10", "--json").json
    assert (len(page["tasks"]), page["more"]) == (10, True)
    assert cli.ok("task", "list", "--limit", "30", "--json").json["more"] is False


def test_all_tasks_are_a_stream_of_lines(cli: Cli) -> None:
    cli.ok("enqueue", "bulk", "-", "--lines", stdin="1\n" * 1100)
    tasks = cli.ok("task", "list", "--all", "--json").lines
    assert len({task["id"] for task in tasks}) == 1100
    assert len(cli.ok("task", "list", "--all").out.splitlines()) == 1100


def test_the_table_is_not_cut_where_nobody_sees_it(cli: Cli) -> None:
    cli.dead("work", reason="r" * 250)
    assert "r" * 250 in cli.ok("task", "list").out
    assert "no tasks match" in cli.ok("task", "list", "--command", "none").out


def test_waiting_too_long_and_failed_tasks_have_exit_codes_of_their_own(cli: Cli) -> None:
    task_id = cli.enqueued("slow")
    late = cli("task", "wait", task_id, "--timeout", "50ms", "--json")
    assert (late.code, late.error["code"], late.out) == (6, "timeout", "")
    cli.ok("task", "cancel", task_id)
    failed = cli("task", "wait", task_id)
    assert (failed.code, "was cancelled" in failed.err, failed.out) == (1, True, "")
    told = cli("task", "wait", task_id, "--json")
    assert (told.code, told.json["status"], told.error["code"]) == (1, "CANCELLED", "task-failed")


def test_waiting_for_a_task_that_ended_prints_its_result(cli: Cli) -> None:
    cli.enqueued()
    task_id, token = cli.claimed()
    cli.ok("result", task_id, "--lease-token", token, '{"a": 1}')
    assert cli.ok("task", "wait", task_id).out == '{"a":1}\n'
    assert cli.ok("task", "wait", task_id, "--json").json["result"] == {"a": 1}


def test_a_cancelled_task_cannot_be_cancelled_again(cli: Cli) -> None:
    task_id = cli.enqueued()
    assert cli.ok("task", "cancel", task_id).out == f"{task_id} is CANCELLED\n"
    assert cli("task", "cancel", task_id).code == 1
    other = cli.enqueued()
    assert cli.ok("task", "cancel", other, "--json").json["status"] == "CANCELLED"
