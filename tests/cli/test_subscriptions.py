"""`codeq subscriptions`: what operators type."""

from pathlib import Path

from tests.cli.shell import Cli

from codeq.wire import paths


def subscribed(cli: Cli, **more: object) -> str:
    tenant = cli.server.tenant(cli.tenant)
    made = tenant.worker.post(paths.SUBSCRIPTIONS, {"callbackUrl": "https://workers.example.com/ready", **more})
    assert made.status_code == 200, made.text
    return str(made.json()["subscriptionId"])


def test_subscriptions_are_listed_and_deleted(cli: Cli) -> None:
    assert cli.ok("subscriptions", "list").out == "there are no subscriptions\n"
    everything = subscribed(cli)
    of_group = subscribed(cli, eventTypes=["mail"], deliveryMode="group", groupId="eu", minIntervalSeconds=0)
    found = {each["id"]: each for each in cli.ok("subscriptions", "list", "--json").json["subscriptions"]}
    assert found.keys() == {everything, of_group}
    assert (found[of_group]["groupId"], found[everything]["eventTypes"]) == ("eu", ["*"])
    listed = cli.ok("subscriptions", "list", env={"COLUMNS": "1000"}).out
    assert "group eu" in listed
    assert "https://workers.example.com/ready" in listed
    assert of_group not in cli.ok("subscriptions", "list", "--command", "resize", env={"COLUMNS": "1000"}).out
    assert cli.ok("subscriptions", "delete", of_group).out == f"{of_group} is deleted\n"
    assert cli("subscriptions", "delete", of_group).code == 3
    cli.ok("subscriptions", "delete", everything, "--json")
    assert cli.ok("subscriptions", "list").out == "there are no subscriptions\n"


def test_those_of_another_tenant_are_neither_seen_nor_deleted(cli: Cli, tmp_path: Path) -> None:
    mine = subscribed(cli)
    other = Cli(cli.server, f"{cli.tenant}-other", tmp_path)
    assert other.ok("subscriptions", "list").out == "there are no subscriptions\n"
    assert other("subscriptions", "delete", mine).code == 3
    assert mine in cli.ok("subscriptions", "list", "--json").out
