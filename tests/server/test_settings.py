"""How the service is configured: file, environment and flags, and the error messages for those that cannot work."""

import os
import socket
import stat
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
import yaml
from tests.server.issuer import settings_for
from tests.server.server_process import Server, answered, refused, run_codeq, start_server
from tests.server.stores import on_rocksdb
from typer.testing import CliRunner

from codeq.cli.main import app
from codeq.domain.backoff import BackoffKind
from codeq.domain.errors import InvalidRequest
from codeq.server.read_settings import leaves, load, variable
from codeq.server.settings import Settings
from codeq.wire import paths

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
STATIC = {"provider": "static", "config": {"token": "canary-secret", "raw": {"tid": "acme"}}}


def written(folder: Path, content: Any) -> str:
    file = folder / "codeq.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(file)


@pytest.fixture(autouse=True)
def _without_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("CODEQ_"):
            monkeypatch.delenv(name)


def codeq(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Runs a command in this process, which is faster: exit code, standard output, standard error."""
    assert "serve" not in arguments, "a server that starts against expectation would never end"
    done = CliRunner().invoke(app, arguments, env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def faults_of(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Returns what `codeq` prints when it refuses before it starts anything."""
    code, out, errors = codeq(*arguments, env=env)
    assert (code, out) == (1, ""), errors
    assert errors.startswith("codeq: ")
    return errors


def refused_start(*arguments: str, env: dict[str, str] | None = None) -> str:
    """As `faults_of`, in a process of its own, for faults that are found at the start."""
    done = run_codeq("serve", *arguments, env=env, within_s=15)
    assert done.returncode == 1, done
    complaint = done.stderr.splitlines()[-1]
    assert complaint.startswith("codeq: ")
    assert "Traceback" not in done.stderr + done.stdout
    return complaint


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = Path(written(tmp_path, {"http": {"port": 1, "host": "::1"}, "store": {"path": "file", "shards": 7}}))
    environ = {"CODEQ_HTTP_PORT": "2", "CODEQ_STORE_PATH": "environment", "HOME": "/"}
    flags = {"store.path": "flag", "http.port": None}
    made = load(file, environ, flags)
    assert (made.store.path, made.http.port, made.http.host, made.store.shards) == ("flag", 2, "::1", 7)
    assert made.store.durability == "fsync"
    assert load(None, {}) == Settings()


@on_rocksdb("looks for the data directory of RocksDB")
def test_a_running_server_keeps_to_that_order(tmp_path: Path) -> None:
    content = {"store": {"path": str(tmp_path / "file"), "durability": "process"}, "retry": {"max_attempts": 3}}
    env = {"CODEQ_STORE_DURABILITY": "fsync", "CODEQ_LEASES_DEFAULT_SECONDS": "12"}
    with start_server(tmp_path / "run", settings=content, env=env) as own:
        assert answered(own.request("GET", paths.READYZ), 200)["durability"] == "fsync"
        assert (own.data / "codeq.json").exists()
        assert not (tmp_path / "file").exists(), "the flag --data won"
        tenant = own.tenant()
        task = tenant.held()
        assert task["maxAttempts"] == 3
        until, since = (datetime.fromisoformat(task[name]) for name in ("leaseUntil", "updatedAt"))
        assert until - since == timedelta(seconds=12)


def test_every_setting_has_its_variable() -> None:
    for path, field in leaves(Settings):
        default = field.default if field.default is not msgspec.NODEFAULT else {}
        text = default if isinstance(default, str) else msgspec.json.encode(default).decode()
        assert load(None, {variable(path): text}) == Settings(), path
    names = [variable(path) for path, _ in leaves(Settings)]
    assert len(set(names)) == len(names) > 30


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("http.port", "0", 0),
        ("http.header_timeout_seconds", "2.5", 2.5),
        ("auth.producers_may_work", "true", True),
        ("auth.producers_may_work", "0", False),
        ("auth.worker.config", '{"issuer": "i"}', {"issuer": "i"}),
        ("rate_limit.tenant_worker.burst_size", "7", 7),
        ("retry.backoff_policy", "linear", "linear"),
    ],
)
def test_a_variable_is_read_as_the_kind_that_its_setting_has(path: str, text: str, value: Any) -> None:
    made: Any = load(None, {variable(path): text})
    for name in path.split("."):
        made = getattr(made, name)
    assert made == value


FAULTY = {
    "http": {"port": 99_999, "hots": "x"},
    "store": {"durability": "maybe", "shards": 0},
    "retry": {"backoff_policy": "never", "max_attempts": "many"},
    "leases": "long",
    "nothing": {"of": "the kind"},
    "log": {"level": "loud"},
}
FAULTY_VARIABLES = {"CODEQ_RETENTION_SECONDS": "-5", "CODEQ_HTTP_PROT": "1", "CODEQ_AUTH_WORKER_CONFIG": "{"}
FAULTS = ["http.port", "http.hots", "store.durability", "store.shards", "retry.max_attempts", "leases", "nothing",
          "log.level", "retention.seconds", "CODEQ_HTTP_PROT", "auth.worker.config"]  # fmt: skip


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, FAULTY)
    errors = faults_of("config", "check", "--config", file, env=FAULTY_VARIABLES)
    lines = [line.strip() for line in errors.splitlines()[1:]]
    assert sorted(line.partition(":")[0] for line in lines) == sorted(FAULTS)
    done = run_codeq("serve", "--config", file, env=FAULTY_VARIABLES)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", errors), "a server says the same and does not start"


def test_a_backoff_that_does_not_exist_is_said_with_those_that_do(tmp_path: Path) -> None:
    errors = faults_of("config", "check", "--dev", env={"CODEQ_RETRY_BACKOFF_POLICY": "never"})
    assert all(kind in errors for kind in BackoffKind)


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text", "a: [", "\x00", "5"])
def test_a_file_that_holds_no_settings_is_said_to_be_so(tmp_path: Path, text: str) -> None:
    file = Path(written(tmp_path, text))
    with pytest.raises(InvalidRequest, match=r"codeq\.yaml"):
        load(file, {})


def test_an_empty_file_is_as_good_as_none_and_a_missing_one_is_a_mistake(tmp_path: Path) -> None:
    assert load(Path(written(tmp_path, "")), {}) == Settings()
    assert "nowhere.yaml" in faults_of("config", "check", "--dev", "--config", str(tmp_path / "nowhere.yaml"))


def test_a_file_cannot_make_python_objects(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    with pytest.raises(InvalidRequest):
        load(Path(written(tmp_path, f"!!python/object/apply:os.mkdir [{trap}]")), {})
    assert not trap.exists()


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    file = written(tmp_path, {"auth": {"producer": STATIC, "producers_may_work": True}})
    assert codeq("config", "check", env={"CODEQ_CONFIG": file}) == (0, "the settings are valid\n", "")
    assert codeq("config", "check", "--dev")[0] == 0


def test_a_secret_in_a_setting_is_in_no_complaint(tmp_path: Path) -> None:
    file = written(tmp_path, {"auth": {"producer": STATIC, "producers_may_work": True}, "http": {"port": -1}})
    env = {"CODEQ_AUTH_WORKER_CONFIG": '{"token": "canary-secret"'}
    assert "canary" not in faults_of("config", "check", "--config", file, env=env)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "127.0.0.1.example.org"])
def test_a_development_server_on_a_public_address_is_refused(host: str) -> None:
    assert "loopback" in faults_of("config", "check", "--dev", env={"CODEQ_HTTP_HOST": host})


def test_a_server_that_would_be_unsafe_does_not_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert "loopback" in refused_start("--dev", "--host", "0.0.0.0", "--port", "0", "--data", str(data))
    assert "auth.producer.provider" in refused_start("--port", "0", "--data", str(data))
    assert not data.exists()


def test_a_server_without_a_word_on_who_may_call_is_refused(tmp_path: Path) -> None:
    assert "auth.producer.provider" in faults_of("config", "check")
    file = written(tmp_path, {"auth": {"producer": STATIC}})
    assert "auth.worker.provider" in faults_of("config", "check", "--config", file)


UNUSABLE: list[dict[str, Any]] = [
    {"provider": "nothing"},
    {"provider": "jwks", "config": {"jwksUrl": "http://127.0.0.1:1/", "issuer": "i"}},
]


@pytest.mark.parametrize("provider", UNUSABLE, ids=lambda provider: str(provider)[:60])
def test_a_server_whose_provider_cannot_work_does_not_start(tmp_path: Path, provider: dict[str, Any]) -> None:
    file = written(tmp_path, {"auth": {"producer": provider, "worker": STATIC}})
    refused_start("--data", str(tmp_path / "data"), "--port", "0", "--config", file)


def test_the_check_finds_a_provider_that_cannot_work(tmp_path: Path) -> None:
    file = written(tmp_path, {"auth": {"producer": UNUSABLE[0], "worker": STATIC}})
    assert "nothing" in faults_of("config", "check", "--config", file)


def test_a_durability_with_a_newline_is_refused_or_means_what_it_says(tmp_path: Path) -> None:
    file = Path(written(tmp_path, "store:\n  durability: |\n    fsync\n"))
    try:
        made = load(file, {})
    except InvalidRequest:
        return
    assert made.store.durability == "fsync"


def test_a_port_that_is_taken_is_said_to_be(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert port in refused_start("--dev", "--data", str(tmp_path / "data"), "--port", port)


@on_rocksdb("any number of servers may share a Redis")
def test_a_data_directory_serves_one_process_only(server: Server) -> None:
    assert "another process" in refused_start("--dev", "--data", str(server.data), "--port", "0")


def test_the_list_of_settings_is_the_one_that_the_code_makes() -> None:
    code, printed, _ = codeq("config", "reference")
    assert (code, printed) == (0, REFERENCE.read_text())
    for path, _field in leaves(Settings):
        assert f"| `{path}` | `{variable(path)}` |" in printed


def test_keys_and_data_are_for_their_owner_alone(server: Server) -> None:
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    assert stat.S_IMODE((server.data / "dev-key.pem").stat().st_mode) == 0o600


# codeq token


def token_for(server: Server, *arguments: str) -> str:
    code, printed, errors = codeq("token", "--data", str(server.data), *arguments)
    assert (code, errors) == (0, "")
    return printed.strip()


def test_a_printed_token_opens_what_its_role_may(server: Server) -> None:
    producer = token_for(server, "--tenant", "printed", "--role", "producer")
    task = answered(server.request("POST", paths.TASKS, {"command": "a", "payload": 1}, token=producer), 202)
    assert task["tenantId"] == "printed"
    refused(server.request("GET", paths.DLQ, token=producer), 403, "forbidden")
    worker = token_for(server, "--tenant", "printed", "--role", "worker", "--subject", "w-1", "--commands", "a,b")
    assert answered(server.request("POST", paths.CLAIM, {}, token=worker), 200)["workerId"] == "w-1"
    refused(server.request("POST", paths.CLAIM, {"commands": ["c"]}, token=worker), 403, "forbidden")
    admin = token_for(server, "--tenant", "printed", "--role", "admin")
    answered(server.request("GET", paths.DLQ, token=admin), 200)


def test_a_printed_token_is_good_for_as_long_as_was_asked(server: Server) -> None:
    for ttl, seconds in (("90s", 90), ("30m", 1800), ("8h", 28_800), ("7d", 604_800)):
        token_claims = jwt.decode(
            token_for(server, "--tenant", "a", "--role", "worker", "--ttl", ttl, "--scopes", "codeq:nack"),
            options={"verify_signature": False},
        )
        assert token_claims["exp"] - token_claims["iat"] == seconds
        assert abs(token_claims["iat"] - time.time()) < 60
        assert (token_claims["scope"], token_claims["eventTypes"], token_claims["sub"]) == (
            "codeq:nack",
            ["*"],
            "worker",
        )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tenant", "a\nb", "--role", "worker"),
        ("--tenant", "x" * 256, "--role", "worker"),
        ("--tenant", "a", "--role", "king"),
        ("--tenant", "a", "--role", "worker", "--ttl", "forever"),
        ("--tenant", "a", "--role", "worker", "--ttl", "-1h"),
    ],
)
def test_a_token_that_cannot_be_made_is_refused(server: Server, arguments: tuple[str, ...]) -> None:
    faults_of("token", "--data", str(server.data), *arguments)


def test_a_directory_without_a_key_gives_no_token(tmp_path: Path) -> None:
    errors = faults_of("token", "--data", str(tmp_path), "--tenant", "a", "--role", "worker")
    assert "serve --dev" in errors
    assert os.listdir(tmp_path) == []


def test_a_server_stops_cleanly_when_it_is_told_to(tmp_path: Path) -> None:
    with start_server(tmp_path, settings=settings_for("http://127.0.0.1:1/")) as own:
        task = own.tenant("t").create()
        assert own.stop() == 0
        assert '"message": "stopped"' in own.log_text()
    with start_server(tmp_path) as again:
        assert again.tenant("t").claim()["id"] == task["id"]
