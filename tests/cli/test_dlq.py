"""`codeq dlq`: list, replay and purge, with confirmation."""

from tests.cli.shell import Cli


def test_errors_are_grouped_by_their_text_the_largest_group_first(cli: Cli) -> None:
    cli.dead("one", reason="timeout")
    full = [cli.dead("one", reason="disk full") for _ in range(2)]
    seen = cli.ok("dlq", "list", "--json").json
    groups = [(group["count"], group["command"], group["error"]) for group in seen["groups"]]
    assert groups == [(2, "one", "disk full"), (1, "one", "timeout")]
    assert seen["groups"][0]["exampleId"] in full
    assert seen["groups"][0]["oldestAt"] <= seen["groups"][0]["newestAt"]
    assert (len(seen["tasks"]), seen["more"]) == (3, False)
    out = cli.ok("dlq", "list").out
    assert out.splitlines()[1].split()[:2] == ["2", "one"]
    assert all(task_id in out for task_id in full)


def test_tracebacks_do_not_split_groups_and_are_shown_with_the_task_alone(cli: Cli) -> None:
    tasks = [cli.dead("one", reason=f"ValueError: bad\nTraceback:\n  line {number}") for number in range(2)]
    [group] = cli.ok("dlq", "list", "--json").json["groups"]
    assert (group["count"], group["error"]) == (2, "ValueError: bad")
    assert "Traceback" not in cli.ok("dlq", "list").out
    assert "line 1" in cli.ok("task", "show", tasks[1]).out


def test_the_list_filters_and_says_when_there_is_more(cli: Cli) -> None:
    cli.dead("one", reason="timeout")
    cli.dead("two", reason="disk full")
    assert [t["command"] for t in cli.ok("dlq", "list", "--command", "two", "--json").json["tasks"]] == ["two"]
    assert [t["command"] for t in cli.ok("dlq", "list", "--error", "time", "--json").json["tasks"]] == ["one"]
    assert cli.ok("dlq", "list", "--limit", "1", "--json").json["more"] is True
    assert "there are more than these 1" in cli.ok("dlq", "list", "--limit", "1").out
    assert len(cli.ok("dlq", "list", "--limit", "1", "--all", "--json").json["tasks"]) == 2
    assert cli.ok("dlq", "list", "--command", "none").out == "no dead tasks match\n"


def test_replayed_tasks_are_pending_again(cli: Cli) -> None:
    cli.dead("one", reason="timeout")
    cli.dead("one", reason="disk full")
    done = cli.ok("dlq", "replay", "--command", "one", "--error", "full", "--yes")
    assert done.out == "replayed 1 dead task of one with 'full' in their error\n"
    queue = cli.ok("queue", "show", "one", "--json").json
    assert (queue["ready"], queue["dlq"]) == (1, 1)
    assert cli.ok("dlq", "replay", "--all", "--yes", "--json").json["changed"] == 1


def test_purged_tasks_are_gone(cli: Cli) -> None:
    first, second = cli.dead(), cli.dead()
    assert cli.ok("dlq", "purge", "--id", first, "--yes", "--json").json["ids"] == [first]
    assert cli("task", "show", first).code == 3
    assert cli.ok("dlq", "purge", "--all", "-y").out == "purged 1 dead task\n"
    assert cli("task", "show", second).code == 3


def test_a_dry_run_changes_nothing_and_asks_nothing(cli: Cli) -> None:
    task_id = cli.dead()
    assert cli.ok("dlq", "purge", "--all", "--dry-run").out == "would purge 1 dead task\n"
    done = cli.ok("dlq", "replay", "--id", task_id, "--dry-run", "--json").json
    assert done == {"matched": 1, "changed": 0, "dryRun": True, "ids": [task_id], "refused": {}}
    assert cli.ok("queue", "show", "work", "--json").json["dlq"] == 1


def test_exactly_one_choice_of_tasks_is_needed(cli: Cli) -> None:
    for chosen in ((), ("--all", "--command", "x"), ("--id", "a", "--all"), ("--id", "a", "--error", "x")):
        assert cli("dlq", "replay", *chosen, "--yes").code == 2


def test_nobody_is_asked_where_nobody_is(cli: Cli) -> None:
    cli.dead()
    for verb in ("purge", "replay"):
        done = cli("dlq", verb, "--all", "--json")
        assert (done.code, done.error["code"], "--yes" in done.error["error"]) == (2, "usage", True)
    assert cli.ok("queue", "show", "work", "--json").json["dlq"] == 1


def test_a_person_is_asked_and_may_say_no(cli: Cli) -> None:
    cli.dead()
    for answer, code, left in (("n\n", 1, 1), ("y\n", 0, 0)):
        with cli.terminal("dlq", "purge", "--all") as screen:
            screen.until("purge 1 dead task?")
            screen.type(answer)
            assert screen.end() == code
        assert cli.ok("queue", "show", "work", "--json").json["dlq"] == left


def test_a_task_that_is_not_dead_is_refused_by_name(cli: Cli) -> None:
    dead, alive = cli.dead(), cli.enqueued("other")
    done = cli("dlq", "replay", "--id", dead, "--id", alive, "--yes", "--json")
    assert (done.code, done.json["changed"], done.json["refused"]) == (1, 1, {alive: "not-dead"})
    assert cli("dlq", "replay", "--id", "0199a1b2-7c3d-7000-8000-3f2a9c5e1b70", "--yes").code == 3


def test_dead_letters_are_listed_for_every_token_and_moved_by_admins(cli: Cli) -> None:
    task_id = cli.enqueued()
    held, token = cli.claimed()
    cli.ok("nack", held, "--lease-token", token, "--dead")
    producer = {"CODEQ_TOKEN": cli.server.token(cli.tenant, "producer")}
    assert [task["id"] for task in cli.ok("dlq", "list", "--json", env=producer).json["tasks"]] == [task_id]
    other = {"CODEQ_TOKEN": cli.server.token(cli.tenant, "worker", subject="other", commands=["another"])}
    assert cli("dlq", "list", env=other).code == 5
    assert cli("dlq", "list", "--command", "work", env=other).code == 5
    assert cli("dlq", "replay", "--id", task_id, "--yes", env=producer).code == 5
    assert cli("dlq", "purge", "--all", "--yes", env=producer).code == 5
    assert cli.ok("task", "show", task_id, "--json").json["status"] == "FAILED"
