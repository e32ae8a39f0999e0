"""Settings that would mean something else than they say are refused, with the name or value that was meant (13.14)."""

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.server.issuer import ISSUER, PRODUCERS, Issuer, claims, sign, worker_claims
from tests.server.server_process import Tenant, answered, eventually, run_codeq, start_server

import codeq
from codeq.domain.errors import InvalidRequest
from codeq.server import dev, main
from codeq.server.auth.claims import make_validator
from codeq.server.read_settings import leaves, load, variable, warnings
from codeq.server.setting_names import ORIGINAL, ORIGINAL_ONLY
from codeq.server.settings import Settings
from codeq.wire import paths

LONG_TOKEN = "a-token-of-some-length"
JWKS = {"jwksUrl": "https://id.example.org/keys", "issuer": "i", "audience": "a"}
KUBERNETES = {
    "CODEQ_SERVICE_HOST": "10.0.0.1",
    "CODEQ_SERVICE_PORT": "8080",
    "CODEQ_SERVICE_PORT_HTTP": "8080",
    "CODEQ_PORT": "tcp://10.0.0.1:8080",
    "CODEQ_PORT_8080_TCP": "tcp://10.0.0.1:8080",
    "CODEQ_PORT_8080_TCP_PROTO": "tcp",
    "CODEQ_PORT_8080_TCP_PORT": "8080",
    "CODEQ_PORT_8080_TCP_ADDR": "10.0.0.1",
    "CODEQ_HTTP_SERVICE_HOST": "10.0.0.2",
    "CODEQ_HTTP_SERVICE_PORT": "80",
    "CODEQ_HTTP_PORT": "tcp://10.0.0.2:80",
    "CODEQ_HTTP_PORT_80_TCP_ADDR": "10.0.0.2",
    "CODEQ_STORE_PORT_53_UDP": "udp://10.0.0.3:53",
}


def static(token: str = LONG_TOKEN, **rest: Any) -> dict[str, Any]:
    return {"provider": "static", "config": {"token": token, "raw": {"tid": "acme"}, **rest}}


def with_auth(producer: dict[str, Any], **http: Any) -> Settings:
    made: Settings = msgspec.convert(
        {"auth": {"producer": producer, "producers_may_work": True}, "http": http}, Settings
    )
    return made


def faults(tmp_path: Path, content: Any, **environ: str) -> str:
    file = tmp_path / "codeq.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(InvalidRequest) as refusal:
        load(file, environ)
    return str(refusal.value)


# Numbers


@pytest.mark.parametrize("path", [path for path, field in leaves(Settings) if isinstance(field.default, int | float)])
def test_no_number_may_be_negative_or_no_number(path: str) -> None:
    """(13.14) Negative rate limits were accepted, and meant none."""
    if isinstance(dict(leaves(Settings))[path].default, bool):
        return
    for text in ("-1", "nan", "inf", "-inf", "1e999", "abc"):
        with pytest.raises(InvalidRequest, match=path):
            load(None, {variable(path): text})


def test_no_trace_may_be_sampled_at_all() -> None:
    """(13.14) 0.0 to 1.0."""
    assert load(None, {"CODEQ_TRACING_SAMPLE_RATIO": "0"}).tracing.sample_ratio == 0
    with pytest.raises(InvalidRequest):
        load(None, {"CODEQ_TRACING_SAMPLE_RATIO": "1.1"})


@pytest.mark.parametrize("text", ["10.0.0.0/33", "proxy.example.org", "10.0.0.1/8"])
def test_proxies_that_are_no_networks_are_refused(text: str) -> None:
    """(13.14)"""
    with pytest.raises(InvalidRequest, match=r"http\.trusted_proxies"):
        load(None, {"CODEQ_HTTP_TRUSTED_PROXIES": text})


# What would mean something else


@pytest.mark.parametrize("path", ["http.host", "store.path"])
def test_an_empty_variable_is_no_address_and_no_directory(path: str) -> None:
    """(13.14) They meant all addresses, and the current directory."""
    with pytest.raises(InvalidRequest, match=path):
        load(None, {variable(path): ""})


def test_rocksdb_has_no_replicas() -> None:
    """(13.14) It did not sync then, and said that it did."""
    with pytest.raises(InvalidRequest, match=r"store\.durability.*store\.url"):
        load(None, {"CODEQ_STORE_DURABILITY": "replicated"})
    assert load(None, {"CODEQ_STORE_DURABILITY": "replicated", "CODEQ_STORE_URL": "redis://h"}).store.url


@pytest.mark.parametrize(
    "content", ["http: {port: 1}\nlog: {level: info}\nhttp: {host: h}\n", "http: {port: 1, port: 2}"]
)
def test_a_name_that_occurs_twice_in_a_file_is_refused(tmp_path: Path, content: str) -> None:
    """(13.14) All that was below the first one was ignored."""
    file = tmp_path / "codeq.yaml"
    file.write_text(content)
    with pytest.raises(InvalidRequest, match=r"given twice\n.*line"):
        load(file, {})


def test_a_file_may_refer_to_what_it_says_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "codeq.yaml"
    file.write_text("log: &log {level: error, format: text}\nhttp: {port: 1}\n")
    assert load(file, {}).log.level == "error"
    file.write_text(
        "rate_limit:\n  producer: &rate {requests_per_minute: 5, burst_size: 7}\n  worker: {<<: *rate, burst_size: 9}\n"
    )
    assert load(file, {}).rate_limit.worker.burst_size == 9


# Providers


@pytest.mark.parametrize(
    ("provider", "config", "complaint"),
    [
        ("jwks", {**JWKS, "skew": "abc"}, "skew"),
        ("jwks", {**JWKS, "clockSkew": 60_000_000_000}, "clockSkewSeconds"),
        ("jwks", {**JWKS, "httpTimeout": 1}, "httpTimeout"),
        ("jwks", {**JWKS, "clockSkewSeconds": "abc"}, "clockSkewSeconds"),
        ("jwks", {**JWKS, "clockSkewSeconds": 1.5}, "clockSkewSeconds"),
        ("jwks", {**JWKS, "issuer": ["i"]}, "issuer"),
        ("jwks", {**JWKS, "jwksFile": "keys.json"}, "either"),
        ("jwks", {**JWKS, "jwksUrl": "http://id.example.org/keys"}, "https"),
        ("jwks", {**JWKS, "jwksUrl": "http://127.0.0.1.example.org/keys"}, "https"),
        ("jwks", {**JWKS, "jwksUrl": "http://127.0.0.1@example.org/keys"}, "https"),
        ("jwks", {**JWKS, "jwksUrl": "http://[::1"}, "https"),
        ("jwks", {**JWKS, "jwksUrl": "https:///keys"}, "https"),
        ("static", {"token": LONG_TOKEN, "scope": "codeq:admin"}, "scopes"),
        ("static", {"token": LONG_TOKEN, "scopes": "codeq:admin"}, "scopes"),
        ("static", {"token": LONG_TOKEN, "eventTypes": "*"}, "eventTypes"),
        ("static", {"token": 7}, "token"),
        ("multi", {"providers": [{"config": {"token": "a"}}, {"type": "static"}]}, "provider"),
        ("multi", {"providers": [{"type": "static", "options": {}}, {"type": "static"}]}, "options"),
        ("multi", {"providers": ["static", "jwks"]}, "providers"),
        ("multi", {"providers": [{"type": "static", "config": {"token": "abc"}}] * 2, "first": True}, "first"),
    ],
)
def test_an_option_that_a_provider_does_not_have_is_refused(
    provider: str, config: dict[str, Any], complaint: str
) -> None:
    """(13.14) Unknown options were ignored, and `abc` for a number was a traceback."""
    with pytest.raises(InvalidRequest, match=complaint):
        make_validator(provider, config)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/keys", "http://localhost/keys", "http://[::1]/keys", JWKS["jwksUrl"]]
)
def test_key_sets_come_over_tls_or_from_this_machine(url: str) -> None:
    """(13.14)"""
    make_validator("jwks", {**JWKS, "jwksUrl": url})


def test_the_check_prints_no_traceback_for_a_skew_that_is_no_number(tmp_path: Path) -> None:
    """(13.14)"""
    file = tmp_path / "codeq.yaml"
    file.write_text(yaml.safe_dump({"auth": {"producer": {"config": {**JWKS, "clockSkewSeconds": "abc"}}}}))
    done = run_codeq("config", "check", "--config", str(file), env={"CODEQ_AUTH_PRODUCERS_MAY_WORK": "1"})
    assert done.returncode == 1
    assert "clockSkewSeconds" in done.stderr
    assert "Traceback" not in done.stderr


def test_jwks_is_the_provider_where_a_key_set_is_configured(tmp_path: Path) -> None:
    """(13.14)"""
    with Issuer().context() as issuer:
        own = issuer.settings()
        for group in own["auth"].values():
            del group["provider"]
        with start_server(tmp_path, dev=False, settings=own) as server:
            task = {"command": "a", "payload": 1}
            answered(server.request("POST", paths.TASKS, task, token=sign(claims())), 202)
            answered(server.request("POST", paths.CLAIM, {}, token=sign(worker_claims())), 200)
    child = {"config": {"jwksFile": "/nonexistent", "issuer": ISSUER, "audience": PRODUCERS}}
    make_validator("multi", {"providers": [child, {"type": "static", "config": {"token": "a"}}]})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_short_token_is_for_loopback_only(host: str) -> None:
    """(13.14) A token of one character was accepted on 0.0.0.0."""
    multi = {"provider": "multi", "config": {"providers": [{"type": "static", "config": {"token": "short"}}] * 2}}
    for weak in (static("x"), static("x" * 15), multi):
        with pytest.raises(InvalidRequest, match="16 characters"):
            main.check(with_auth(weak, host=host), is_dev=False)
        main.check(with_auth(weak), is_dev=False)
    main.check(with_auth(static("x" * 16), host=host), is_dev=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_token_of_development_servers_is_for_them_alone(host: str) -> None:
    """(13.14)"""
    with pytest.raises(InvalidRequest, match="--dev"):
        main.check(with_auth(static("dev-token"), host=host), is_dev=False)


# Names


def test_each_name_of_the_original_is_answered_with_the_name_here(tmp_path: Path) -> None:
    """(13.14)"""
    known = {path for path, _ in leaves(Settings)}
    complaints = faults(tmp_path, dict.fromkeys([*ORIGINAL, *ORIGINAL_ONLY], 1))
    for name, path in ORIGINAL.items():
        assert f"  {name}: this setting is called {path} here" in complaints
        group = path.partition(".config.")[0] + ".config" if ".config." in path else path
        assert group in known or any(one.startswith(f"{group}.") for one in known), path
    for name in ORIGINAL_ONLY:
        assert f"  {name}: there is no such setting; the original" in complaints


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"http": {"hots": "x"}}, "http.hots: there is no such setting; did you mean host?"),
        (
            {"http": {"connectionsMax": 1}},
            "http.connectionsMax: there is no such setting; did you mean connections_max?",
        ),
        ({"rate_limit": {"producer": {"requestsPerMinute": 1}}}, "did you mean requests_per_minute?"),
        ({"retries": {}}, "retries: there is no such setting"),
        ({"something": {}}, "something: there is no such setting"),
    ],
)
def test_a_misspelt_name_in_a_file_is_answered_with_the_right_one(
    tmp_path: Path, content: dict[str, Any], complaint: str
) -> None:
    """(13.14)"""
    assert complaint in faults(tmp_path, content)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CODEQ_HTTP_PROT", "CODEQ_HTTP_PORT"),
        ("CODEQ_HTTPPORT", "CODEQ_HTTP_PORT"),
        ("CODEQ_STORE_PAHT", "CODEQ_STORE_PATH"),
        ("CODEQ_STORE_DURABILTY", "CODEQ_STORE_DURABILITY"),
        ("CODEQ_MAX_ATTEMPTS", "CODEQ_RETRY_MAX_ATTEMPTS"),
        ("CODEQ_AUTH_PRODUCER_CONFIGS", "CODEQ_AUTH_PRODUCER_CONFIG"),
        ("CODEQ_CONFIG_PATH", "CODEQ_CONFIG"),
    ],
)
def test_a_variable_close_to_a_setting_is_an_error_with_the_suggestion(tmp_path: Path, name: str, meant: str) -> None:
    """(13.14)"""
    complaints = faults(tmp_path, {}, **{name: "x"})
    assert f"{name}: " in complaints
    assert f"{meant}?" in complaints or f"{meant} here" in complaints


def test_variables_of_others_are_a_warning_and_those_of_kubernetes_not_even_that(tmp_path: Path) -> None:
    """(13.14) Any unknown variable stopped the server, and Kubernetes sets several beside a Service called codeq."""
    assert load(None, KUBERNETES) == Settings()
    assert warnings(KUBERNETES | {"CODEQ_URL": "x", "CODEQ_HTTP_HOST": "::1", "PORT": "80"}) == []
    others = {"CODEQ_NO_SUCH": "secret", "TRACING_SAMPLE_RATIO": "0.1"}
    assert load(None, others) == Settings()
    said = warnings(others)
    assert [text.partition(" ")[0] for text in said] == list(others)
    assert "tracing.sample_ratio" in said[1]
    with start_server(tmp_path, env=KUBERNETES | others) as server:
        answered(server.request("GET", paths.TASKS), 200)
        log = server.log_text()
    assert "CODEQ_NO_SUCH is not read" in log
    assert "secret" not in log
    assert "CODEQ_SERVICE_HOST" not in log
    done = run_codeq("config", "check", "--dev", env=others)
    assert (done.returncode, done.stdout) == (0, "the settings are valid\n")
    assert "codeq: warning: CODEQ_NO_SUCH is not read" in done.stderr


def test_a_setting_wins_over_a_variable_of_kubernetes_with_its_name() -> None:
    """(13.14) What a pod's own environment says replaces what Kubernetes would set."""
    assert load(None, KUBERNETES | {"CODEQ_HTTP_PORT": "9000"}).http.port == 9000


# Files


def modes(folder: Path) -> dict[str, set[str]]:
    """Returns the modes of the directories and of the files of a tree."""
    found: dict[str, set[str]] = {"directories": set(), "files": set()}
    for path in (folder, *folder.rglob("*")):
        found["directories" if path.is_dir() else "files"].add(oct(stat.S_IMODE(path.stat().st_mode)))
    return found


def test_backups_and_restores_are_for_their_owner_alone(tmp_path: Path) -> None:
    """(13.14) Also of a backup that came through an archive with other modes."""
    own = {"directories": {"0o700"}, "files": {"0o600"}}
    before = os.umask(0o022)
    try:
        with codeq.open(tmp_path / "data", shards=2) as queue:
            queue.enqueue("job", 1)
            queue.backup(tmp_path / "backup")
        assert modes(tmp_path / "backup") == own
        for path in (tmp_path / "backup", *(tmp_path / "backup").rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        codeq.restore(tmp_path / "backup", tmp_path / "restored")
    finally:
        os.umask(before)
    assert modes(tmp_path / "restored") == own
    with codeq.open(tmp_path / "restored") as queue:
        assert len(queue.list().tasks) == 1


def test_all_that_a_server_writes_is_for_its_owner_alone(tmp_path: Path) -> None:
    """(13.14)"""
    before = os.umask(0o000)
    try:
        with start_server(tmp_path) as server:
            server.tenant().create()
            found = modes(server.data)
    finally:
        os.umask(before)
    assert found == {"directories": {"0o700"}, "files": {"0o600"}}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_development_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """(13.14)"""
    dev.prepare(tmp_path)
    (tmp_path / "dev-key.pem").chmod(mode)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        dev.prepare(tmp_path)
    done = run_codeq("token", "--data", str(tmp_path), "--tenant", "a", "--role", "worker")
    assert (done.returncode, done.stdout) == (1, "")
    (tmp_path / "dev-key.pem").chmod(0o600)
    dev.prepare(tmp_path)


def test_how_much_a_claim_and_the_sweeper_promote_and_how_often_are_settings(tmp_path: Path) -> None:
    """(13.7) Tasks that become due together are claimed one by one, and the rest is left to a sweeper that sleeps."""
    sweeping = {"inspect_limit": 1, "promote_limit": 1, "promote_interval_seconds": 60}
    with start_server(tmp_path, settings={"sweep": sweeping}) as server:
        tenant = server.tenant()
        assert _claimed(tenant) == []
        soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
        tasks = [{"command": "work", "payload": place, "runAt": soon} for place in range(3)]
        answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": tasks}), 200)
        sizes = [len(eventually(lambda: _claimed(tenant), within_s=30)) for _ in range(3)]
    assert sizes == [1, 1, 1]


def _claimed(tenant: Tenant) -> list[Any]:
    answer = tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 3})
    return list(answer.json()["tasks"]) if answer.status_code == 200 else []
