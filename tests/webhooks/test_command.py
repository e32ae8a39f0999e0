"""`codeq webhooks`: what operators type."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import Cli
from tests.server.server_process import Server, Tenant, eventually
from tests.webhooks.conftest import SECRET
from tests.webhooks.http_receiver import HttpReceiver


@pytest.fixture
def tenant(server: Server) -> Tenant:
    return server.tenant()


@pytest.fixture
def cli(server: Server, tenant: Tenant, tmp_path: Path) -> Cli:
    return Cli(server, tenant.name, tmp_path)


def test_dead_deliveries_are_listed_shown_and_replayed(cli: Cli, tenant: Tenant, receiver: HttpReceiver) -> None:
    assert cli.ok("webhooks", "list").out == "there are no deliveries\n"
    receiver.answer("/hook", lambda number: (410 if number == 1 else 200, {}))
    task = tenant.ended(webhook=receiver.url())
    [dead] = eventually(lambda: cli.ok("webhooks", "list", "--state", "dead", "--json").json["deliveries"])
    assert (dead["taskId"], dead["lastError"]) == (task["id"], "HTTP 410")
    listed = cli.ok("webhooks", "list", env={"COLUMNS": "1000"}).out
    assert dead["id"] in listed
    assert "HTTP 410" in listed
    narrow = cli.ok("webhooks", "list", env={"COLUMNS": "90"}).out
    assert f"{dead['id']}  dead  " in narrow, "nobody can do anything with half an id"
    shown = cli.ok("webhooks", "show", dead["id"]).out
    assert '"taskId"' in shown
    assert cli.ok("webhooks", "show", dead["id"], "--json").json["body"]["taskId"] == task["id"]
    assert cli.ok("webhooks", "replay", "--all", "--dry-run").out == "would replay 1 dead delivery\n"
    assert cli("webhooks", "replay", "--all").code == 2, "there is no terminal to ask in"
    assert cli.ok("webhooks", "replay", "--error", "410", "--yes").out == "replayed 1 dead delivery\n"
    receiver.wait(2)
    eventually(lambda: cli.ok("webhooks", "list", "--state", "delivered", "--json").json["deliveries"])
    assert cli.ok("webhooks", "list", "--state", "dead").out == "no deliveries match\n"


def test_all_are_replayed_however_many_a_call_takes(
    cli: Cli, tenant: Tenant, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codeq.cli.webhooks.CALL_DELIVERIES", 2)
    receiver.answer("/hook", lambda _: (410, {}))
    for _ in range(5):
        tenant.ended(webhook=receiver.url())

    def dead() -> list[Any]:
        found: list[Any] = cli.ok("webhooks", "list", "--state", "dead", "--json").json["deliveries"]
        return found if len(found) == 5 else []

    eventually(dead)
    assert "there are more than these 4; use --limit" in cli.ok("webhooks", "list", "--limit", "4").out
    assert "there are more" not in cli.ok("webhooks", "list", "--limit", "5").out
    assert cli.ok("webhooks", "replay", "--error", "410", "--dry-run").out == "would replay 5 dead deliveries\n"
    done = cli.ok("webhooks", "replay", "--all", "--yes", "--json").json
    assert (done["matched"], done["changed"]) == (5, 5)
    eventually(dead)
    assert len(receiver.got()) == 10, "each once more, though they are dead again at once"


def test_wrong_usage_is_refused(cli: Cli) -> None:
    for words in (("replay",), ("replay", "--all", "--error", "x"), ("list", "--state", "x")):
        assert cli("webhooks", *words).code == 2
    assert cli("webhooks", "show", "none").code == 3
    assert cli("webhooks", "replay", "--id", "none", "--yes").code != 0


def test_a_test_reports_how_it_went(cli: Cli, receiver: HttpReceiver) -> None:
    tested = cli.ok("webhooks", "test", receiver.url()).out
    assert ": delivered, HTTP 204 in " in tested
    shown = cli.ok("webhooks", "show", tested.partition(":")[0]).out
    assert "HTTP 204 in " in shown
    assert "None" not in shown
    receiver.answer("/bad", lambda _: (410, {}))
    failed = cli("webhooks", "test", receiver.url("/bad"))
    assert failed.code != 0
    assert "HTTP 410" in failed.out
    assert cli("webhooks", "test", "http://10.0.0.1/").code != 0


def test_secrets_are_made_and_shown(cli: Cli) -> None:
    assert cli.ok("webhooks", "secret").out == f"{SECRET}\n"
    made = cli.ok("webhooks", "new-secret").out.strip()
    assert made.startswith("whsec_")
    assert made != cli.ok("webhooks", "new-secret").out.strip()
