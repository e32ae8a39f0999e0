"""`codeq claim`, `result`, `nack`, `abandon` and `heartbeat`: a shell script as a worker."""

import subprocess

from tests.cli.shell import Cli
from tests.server.server_process import command_line, environment


def test_a_claim_into_a_pipe_is_a_line_with_tabs_per_task(cli: Cli) -> None:
    made = [cli.enqueued("work", '{ "a":  "tab\\t" }') for _ in range(2)]
    lines = cli.ok("claim", "work", "--limit", "5").out.splitlines()
    assert sorted(line.split("\t")[0] for line in lines) == sorted(made)
    assert [line.split("\t")[1:] for line in lines] == [["1", "work", '{"a":"tab\\t"}']] * 2


def test_nothing_to_claim_prints_nothing_and_is_no_failure(cli: Cli) -> None:
    assert cli.ok("claim", "work", "--wait", "100ms").out == ""
    assert cli.ok("claim", "--json").json == {"tasks": []}


def test_a_claim_in_json_has_payload_token_and_lease(cli: Cli) -> None:
    task_id = cli.enqueued("work", '{"a": 1}')
    [task] = cli.ok("claim", "--lease", "2m", "--json").json["tasks"]
    assert (task["id"], task["payload"], task["leaseToken"], task["workerId"]) == (task_id, {"a": 1}, 1, "me")
    assert task["leaseUntil"].endswith("Z")


def test_a_person_sees_a_table_and_what_to_do_next(cli: Cli) -> None:
    task_id = cli.enqueued()
    with cli.terminal("claim", "work") as screen:
        assert screen.end() == 0
    assert task_id in screen.seen
    assert "lease until" in screen.seen
    assert "codeq result ID" in screen.seen


def test_a_result_ends_the_task(cli: Cli) -> None:
    cli.enqueued()
    task_id, token = cli.claimed()
    assert cli.ok("result", task_id, "--lease-token", token, '{"ok": [1]}').out == f"{task_id} is COMPLETED\n"
    assert cli.ok("task", "wait", task_id).out == '{"ok":[1]}\n'


def test_a_result_may_come_from_standard_input_or_be_left_out(cli: Cli) -> None:
    for arguments, given, expected in ((("-",), '"text"', "text"), ((), None, None)):
        cli.enqueued()
        task_id, token = cli.claimed()
        done = cli.ok("result", task_id, "--lease-token", token, "--json", *arguments, stdin=given)
        assert done.json == {"taskId": task_id, "status": "COMPLETED"}
        assert cli.ok("task", "show", task_id, "--json").json["result"] == expected


def test_an_error_ends_the_task_for_good(cli: Cli) -> None:
    cli.enqueued()
    task_id, token = cli.claimed()
    assert cli.ok("result", task_id, "--lease-token", token, "--error", "no such image").out.endswith("is FAILED\n")
    task = cli.ok("task", "show", task_id, "--json").json
    assert (task["status"], task["error"], task["dead"]) == ("FAILED", "no such image", False)


def test_a_nack_says_when_it_is_tried_again_or_that_it_is_dead(cli: Cli) -> None:
    cli.enqueued("work", "1", "--max-attempts", "2")
    task_id, token = cli.claimed()
    assert "for a retry at once" in cli.ok("nack", task_id, "--lease-token", token, "--delay", "0").out
    task_id, token = cli.claimed()
    assert token == "2"
    done = cli.ok("nack", task_id, "--lease-token", token, "--reason", "disk full", "--json")
    assert done.json == {"taskId": task_id, "status": "dlq", "delaySeconds": 0}
    assert cli.ok("task", "show", task_id, "--json").json["lastError"] == "disk full"


def test_a_nack_may_dead_letter_at_once(cli: Cli) -> None:
    cli.enqueued()
    task_id, token = cli.claimed()
    assert "is in the dead-letter queue" in cli.ok("nack", task_id, "--lease-token", token, "--dead").out


def test_an_abandoned_task_is_there_for_the_next(cli: Cli) -> None:
    cli.enqueued()
    task_id, token = cli.claimed()
    assert "at once" in cli.ok("abandon", task_id, "--lease-token", token).out
    assert cli.claimed()[0] == task_id


def test_a_heartbeat_says_until_when(cli: Cli) -> None:
    cli.enqueued()
    task_id, token = cli.claimed()
    done = cli.ok("heartbeat", task_id, "--lease-token", token, "--extend", "1h", "--progress", "page 3", "--json")
    assert done.json["taskId"] == task_id
    shown = cli.ok("task", "show", task_id, "--json").json
    assert (shown["leaseUntil"], shown["progress"]) == (done.json["leaseUntil"], "page 3")


def test_an_old_token_is_refused_whatever_the_verb(cli: Cli) -> None:
    cli.enqueued()
    task_id, token = cli.claimed()
    cli.ok("abandon", task_id, "--lease-token", token)
    cli.claimed()
    for verb in (("result",), ("nack",), ("abandon",), ("heartbeat",)):
        done = cli(*verb, task_id, "--lease-token", token, "--json")
        assert (done.code, done.error["code"], done.out) == (1, "not-owner", ""), verb


def test_the_lease_needs_its_token_and_the_token_is_a_number(cli: Cli) -> None:
    assert cli("result", "some-id").code == 2
    assert cli("result", "some-id", "--token", "dev-token").code == 2


def test_the_loop_of_the_help_page_works_through_a_queue(cli: Cli) -> None:
    """As a script would do it: a shell, real pipes, processes of their own."""
    for number in range(2):
        cli.enqueued("work", f'{{"n": {number}}}')
    codeq = " ".join(f"'{part}'" for part in command_line())
    script = f"""
        codeq() {{ {codeq} "$@"; }}
        codeq claim work --limit 10 | while IFS=$'\\t' read -r id token command payload; do
            codeq result "$id" --lease-token "$token" "$payload" || exit 1
        done
    """
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment(cli.env),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    tasks = cli.ok("task", "list", "--command", "work", "--json").json["tasks"]
    assert [task["status"] for task in tasks] == ["COMPLETED", "COMPLETED"]
