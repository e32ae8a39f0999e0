"""`codeq artifact`: a shell script that uploads files for a result, and somebody who fetches them."""

import hashlib
from pathlib import Path

from tests.cli.shell import Cli

LARGE = bytes(range(256)) * 40_000  # more than one part


def test_files_are_uploaded_listed_and_fetched(cli: Cli, tmp_path: Path) -> None:
    cli.enqueued()
    task_id, token = cli.claimed()
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "model.bin").write_bytes(LARGE)
    put = cli.ok("artifact", "put", task_id, str(tmp_path / "table.csv"), "--lease-token", token)
    assert put.out == "table.csv is uploaded (8 B); codeq result --artifact names it\n"
    named = cli.ok(
        "artifact",
        "put",
        task_id,
        str(tmp_path / "model.bin"),
        "--lease-token",
        token,
        "--name",
        "m",
        "--type",
        "x/y",
        "--json",
    ).json
    assert named == {
        "taskId": task_id, "name": "m", "contentType": "x/y", "size": len(LARGE),
        "sha256": hashlib.sha256(LARGE).hexdigest(),
    }  # fmt: skip
    assert cli.ok("artifact", "list", task_id).out.startswith("the task has no artifacts;"), "its result names none yet"
    cli.ok("result", task_id, "--lease-token", token, "--artifact", "table.csv", "--artifact", "m")

    listed = cli.ok("artifact", "list", task_id, env={"COLUMNS": "1000"}).out
    assert "text/csv" in listed
    assert hashlib.sha256(LARGE).hexdigest() in listed
    found = cli.ok("artifact", "list", task_id, "--json").json["artifacts"]
    assert [(each["name"], each["size"]) for each in found] == [("table.csv", 8), ("m", len(LARGE))]
    (tmp_path / "to").mkdir()
    got = cli.ok("artifact", "get", task_id, "m", "--output", str(tmp_path / "to"), "--json").json
    assert got == {"taskId": task_id, "name": "m", "path": str(tmp_path / "to" / "m")}
    assert (tmp_path / "to" / "m").read_bytes() == LARGE
    cli.ok("artifact", "get", task_id, "table.csv", "-o", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_text() == "a,b\n1,2\n"


def test_what_cannot_be_had_is_said_and_leaves_no_file(cli: Cli, tmp_path: Path) -> None:
    cli.enqueued()
    task_id, token = cli.claimed()
    (tmp_path / "a").write_text("a")
    assert cli("artifact", "put", task_id, str(tmp_path / "none"), "--lease-token", token).code == 2
    assert cli("artifact", "put", task_id, str(tmp_path / "a"), "--lease-token", token, "--name", "../a").code != 0
    assert cli("artifact", "put", task_id, str(tmp_path / "a"), "--lease-token", str(int(token) + 1)).code != 0
    cli.ok("result", task_id, "--lease-token", token)
    refused = cli("artifact", "put", task_id, str(tmp_path / "a"), "--lease-token", token)
    assert refused.code != 0
    missing = cli("artifact", "get", task_id, "a", "--output", str(tmp_path / "b"))
    assert missing.code == 3
    assert "has no artifact" in missing.err
    assert not (tmp_path / "b").exists()
    stranger = Cli(cli.server, f"{cli.tenant}-other", tmp_path)
    assert stranger("artifact", "list", task_id).code == 3
