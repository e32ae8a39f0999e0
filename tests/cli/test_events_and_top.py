"""`codeq events tail` and `codeq top`: the commands that run until Ctrl-C."""

import signal
import subprocess

import msgspec
from rich.console import Console
from tests.cli.shell import Cli

import codeq
from codeq.cli.top import QueueMonitor
from codeq.domain.ids import shard_of


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_log_of_all_shards_is_printed_from_the_start(cli: Cli) -> None:
    made: set[str] = set()
    while {shard_of(task_id) for task_id in made} != {0, 1}:  # keys are random, and choose the shard
        made.add(cli.enqueued("work"))
    events = cli.ok("events", "tail", "--from", "start", "--no-follow", "--json").lines
    assert {event["taskId"] for event in events} == made
    assert {event["shard"] for event in events} == {0, 1}
    assert {event["move"] for event in events} == {"enqueue"}
    for shard in (0, 1):
        seqs = [event["seq"] for event in events if event["shard"] == shard]
        assert seqs == sorted(seqs)


def test_events_are_filtered_by_command_and_read_by_people(cli: Cli) -> None:
    cli.enqueued("one")
    task_id = cli.dead("two", reason="disk full")
    out = cli.ok("events", "tail", "--from", "start", "--no-follow", "--command", "two").out
    assert [line.split()[3] for line in out.splitlines()] == ["enqueue", "claim", "nack"]
    assert all(task_id in line for line in out.splitlines())
    assert "IN_PROGRESS → FAILED" in out


def test_now_means_nothing_of_what_was_and_a_number_is_an_offset(cli: Cli) -> None:
    cli.enqueued("work")
    assert cli.ok("events", "tail", "--no-follow").out == ""
    last = max(event["seq"] for event in cli.ok("events", "tail", "--from", "1", "--no-follow", "--json").lines)
    assert cli.ok("events", "tail", "--from", str(last + 1), "--no-follow").out == ""
    assert cli("events", "tail", "--from", "yesterday").code == 2


def test_events_without_the_scope_are_not_allowed(cli: Cli) -> None:
    token = {"CODEQ_TOKEN": cli.server.token(cli.tenant, "producer")}
    assert cli("events", "tail", "--no-follow", env=token).code == 5


def test_new_events_come_as_they_happen_and_ctrl_c_ends_it_quietly(cli: Cli) -> None:
    cli.enqueued("before")
    process = cli.start("events", "tail", "--from", "start", "--json")
    assert msgspec.json.decode(first_line(process))["command"] == "before"
    for number in range(4):  # on both shards
        task_id = cli.enqueued(f"after-{number}")
        assert msgspec.json.decode(first_line(process))["taskId"] == task_id
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_reader_that_has_seen_enough_is_no_error(cli: Cli) -> None:
    cli.ok("enqueue", "bulk", "-", "--lines", stdin="1\n" * 3000)
    for arguments in (("events", "tail", "--from", "start", "--json"), ("task", "list", "--all"), ("--version",)):
        with cli.start(*arguments) as process:
            assert process.stdout is not None
            if arguments != ("--version",):
                first_line(process)
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(20) == 0


def test_top_shows_counts_and_rates_once(cli: Cli) -> None:
    cli.dead("work")
    cli.enqueued("work")
    [queue] = cli.ok("top", "--once", "--every", "100ms", "--json").json["queues"]
    assert (queue["command"], queue["ready"], queue["dlq"]) == ("work", 1, 1)
    assert [queue[f"{kind}PerSecond"] for kind in ("enqueued", "completed", "failed")] == [0, 0, 0]
    [head, row] = cli.ok("top", "--once", "--every", "100ms").out.splitlines()
    assert head.split()[-3:] == ["enqueued/s", "completed/s", "failed/s"]
    assert row.split()[0] == "work"


def test_top_says_that_there_is_nothing_to_show(cli: Cli) -> None:
    assert cli.ok("top", "--once", "--every", "100ms").out == "there are no tasks in any queue\n"


def test_top_shows_queues_that_are_emptied_as_fast_as_they_fill(cli: Cli) -> None:
    with codeq.Client(cli.server.base, cli.env["CODEQ_TOKEN"]) as client:
        monitor = QueueMonitor(client)
        monitor.refresh()
        client.enqueue("quick")
        [job] = client.claim("quick")
        client.complete(job)
        monitor.refresh()
    screen = Console(width=120)
    with screen.capture() as shown:
        screen.print(monitor.screen("", 1))
    assert "quick" in shown.get()
    assert "there are no tasks" not in shown.get()


def test_top_into_a_pipe_is_plain_lines_with_rates_of_what_happens(cli: Cli) -> None:
    process = cli.start("top", "--every", "300ms", "--json")
    first_line(process)
    for _ in range(3):
        cli.enqueued("busy")
    rates: list[float] = []
    while sum(rates) == 0 and len(rates) < 20:
        looks = msgspec.json.decode(first_line(process))
        rates += [queue["enqueuedPerSecond"] for queue in looks["queues"]]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "")
    assert sum(rates) > 0


def test_top_without_the_right_to_events_has_no_rates(cli: Cli) -> None:
    cli.enqueued("work")
    token = {"CODEQ_TOKEN": cli.server.token(cli.tenant, "producer")}
    [queue] = cli.ok("top", "--once", "--every", "100ms", "--json", env=token).json["queues"]
    assert (queue["ready"], queue["enqueuedPerSecond"]) == (1, None)


def test_top_in_a_terminal_fills_the_screen_and_gives_it_back(cli: Cli) -> None:
    cli.enqueued("work")
    with cli.terminal("top", "--every", "200ms") as screen:
        screen.until("\x1b[?1049h")
        screen.until("1 waiting, 0 in progress")
        screen.until("enqueued/s")
        cli.enqueued("another")
        screen.until("another")
        screen.interrupt()
        assert screen.end() == 130
    assert screen.seen.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))
    assert "Traceback" not in screen.seen
