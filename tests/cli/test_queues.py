"""`codeq queue`: counts, pause, policies."""

import pytest
from tests.cli.shell import Cli


def test_the_list_has_exact_counts_under_the_names_of_the_wire(cli: Cli) -> None:
    cli.dead("work")
    cli.enqueued("work")
    cli.enqueued("work", "1", "--delay", "1h")
    cli.enqueued("work")
    cli.claimed("work")
    [queue] = cli.ok("queue", "list", "--json").json["queues"]
    assert queue.pop("oldestAgeSeconds") >= 0
    assert queue == {
        "command": "work",
        "ready": 1,
        "delayed": 1,
        "inProgress": 1,
        "dlq": 1,
        "paused": False,
        "workers": 1,
    }
    [head, row] = cli.ok("queue", "list").out.splitlines()
    assert head.split() == ["command", "pending", "delayed", "in", "progress", "dead", "oldest", "workers"]
    assert row.split()[:5] == ["work", "1", "1", "1", "1"]


def test_a_queue_that_is_not_there_is_not_shown_as_an_empty_one(cli: Cli) -> None:
    cli.enqueued("resize")
    for command in ("rezise", "mail"):
        done = cli("queue", "show", command, "--json")
        assert (done.code, done.error["code"]) == (3, "not-found")
    assert "did you mean resize?" in cli("queue", "show", "rezise").err
    cli.ok("queue", "policy", "mail", "--set", "lease=1m")
    assert cli.ok("queue", "show", "mail", "--json").json["ready"] == 0
    cli.ok("claim", "crop")
    assert cli.ok("queue", "show", "crop", "--json").json["workers"] == 1


def test_a_queue_that_nobody_works_on_says_so(cli: Cli) -> None:
    cli.enqueued("work")
    assert "nobody works on it" in cli.ok("queue", "list").out
    cli.claimed("work")
    cli.enqueued("work")
    assert "nobody works on it" not in cli.ok("queue", "list").out


def test_no_queues_are_said_in_words(cli: Cli) -> None:
    assert cli.ok("queue", "list").out == "there are no tasks in any queue\n"
    assert cli.ok("queue", "list", "--json").json == {"queues": []}


def test_a_paused_queue_hands_out_nothing(cli: Cli) -> None:
    cli.enqueued("work")
    assert cli.ok("queue", "pause", "work").out == "work is paused\n"
    assert cli.ok("claim", "work").out == ""
    assert "paused" in cli.ok("queue", "list").out
    assert cli.ok("queue", "resume", "work", "--json").json == {"command": "work", "paused": False}
    assert cli.ok("claim", "work").out != ""


def test_rules_are_set_one_by_one_and_kept(cli: Cli) -> None:
    assert "no policy of its own" in cli.ok("queue", "policy", "work").out
    cli.ok("queue", "policy", "work", "--set", "max-attempts=3", "--set", "lease=10m", "--set", "backoff=fixed")
    cli.ok(
        "queue",
        "policy",
        "work",
        "--set",
        "backoff-base=500ms",
        "--set",
        "retention=7d",
        "--set",
        "on-expiry=immediate",
    )
    policy = cli.ok("queue", "policy", "work", "--json").json["policy"]
    assert (policy["maxAttempts"], policy["leaseSeconds"], policy["retentionSeconds"]) == (3, 600, 604_800)
    assert policy["backoff"] == {"policy": "fixed", "baseSeconds": 0.5}
    assert policy["onExpiry"] == "immediate"
    shown = cli.ok("queue", "show", "work").out
    assert "10 m" in shown
    assert "immediate" in shown


def test_a_rule_is_set_and_unset_and_the_others_stay_as_they_are(cli: Cli) -> None:
    """(13.26)"""
    cli.ok("queue", "policy", "work", "--set", "max-attempts=3", "--set", "backoff-base=1s", "--set", "backoff-max=2s")
    cli.ok("queue", "pause", "work")
    changed = cli.ok("queue", "policy", "work", "--unset", "backoff-base", "--set", "lease=10m", "--json").json
    assert changed["policy"] == {
        "maxAttempts": 3, "backoff": {"maxSeconds": 2.0}, "leaseSeconds": 600.0, "paused": True
    }  # fmt: skip
    assert changed["effectivePolicy"]["backoff"] == {"policy": "exp_full_jitter", "baseSeconds": 5.0, "maxSeconds": 2.0}
    assert changed["version"] == 3
    cli.ok("queue", "policy", "work", "--unset", "backoff-max", "--unset", "paused", "--unset", "max-attempts")
    shown = cli.ok("queue", "policy", "work").out
    assert "version 4" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.endswith("set")] == ["lease"]
    assert cli.ok("queue", "policy", "other", "--unset", "lease", "--json").json["policy"] is None
    assert cli("queue", "policy", "work", "--unset", "leese").code == 2


def test_a_change_is_refused_if_the_policy_has_another_version(cli: Cli) -> None:
    """(13.26)"""
    cli.ok("queue", "policy", "work", "--set", "max-attempts=3", "--if-version", "0")
    cli.ok("queue", "policy", "work", "--set", "max-attempts=4", "--if-version", "1")
    for change in (("--set", "max-attempts=5"), ("--unset", "max-attempts"), ("--reset",)):
        done = cli("queue", "policy", "work", *change, "--if-version", "1", "--json")
        assert (done.code, done.error["code"]) == (1, "policy-changed")
    assert cli.ok("queue", "policy", "work", "--json").json["policy"] == {"maxAttempts": 4}
    assert cli.ok("queue", "policy", "work", "--reset", "--if-version", "2", "--json").json["version"] == 0


def test_reset_forgets_the_rules(cli: Cli) -> None:
    cli.ok("queue", "policy", "work", "--set", "max-attempts=3")
    assert cli.ok("queue", "policy", "work", "--reset", "--json").json["policy"] is None


@pytest.mark.parametrize("rule", ["unknown=1", "max-attempts", "max-attempts=many", "backoff=wild", "lease=soon", "=3"])
def test_a_rule_that_makes_no_sense_is_refused_before_it_is_sent(cli: Cli, rule: str) -> None:
    assert cli("queue", "policy", "work", "--set", rule).code == 2
    assert cli.ok("queue", "policy", "work", "--json").json["policy"] is None


def test_a_rule_that_the_server_refuses_changes_nothing(cli: Cli) -> None:
    assert cli("queue", "policy", "work", "--set", "max-attempts=1000").code == 1
    assert cli("queue", "policy", "work", "--set", "max-attempts=1", "--reset").code == 2
    assert cli.ok("queue", "policy", "work", "--json").json["policy"] is None


def test_who_may_not_see_the_rules_still_sees_the_counts(cli: Cli) -> None:
    cli.enqueued("work")
    token = {"CODEQ_TOKEN": cli.server.token(cli.tenant, "producer")}
    done = cli.ok("queue", "show", "work", "--json", env=token).json
    assert (done["ready"], done["policy"]) == (1, None)
    assert "admins only" in cli.ok("queue", "show", "work", env=token).out
    assert cli("queue", "pause", "work", env=token).code == 5
