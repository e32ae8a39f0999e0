"""Profiles, and which server and token a command uses when several are named."""

import stat
import tomllib
from pathlib import Path

import pytest
from tests.cli.shell import Cli

from codeq.cli import connect, profile_file
from codeq.cli.profile_file import Profile, Profiles
from codeq.wire.local_server import DEV_TOKEN

SECRET = "s3cr3t-t0ken"


@pytest.fixture
def bare(cli: Cli) -> Cli:
    """Without CODEQ_URL and CODEQ_TOKEN."""
    cli.env = {"XDG_CONFIG_HOME": cli.env["XDG_CONFIG_HOME"]}
    return cli


def test_profiles_are_added_listed_used_shown_and_removed(bare: Cli) -> None:
    assert "there are no profiles" in bare.ok("profile", "list").out
    bare.ok("profile", "add", "dev", "--url", "http://127.0.0.1:8080", "--token-env", "DEV_TOKEN")
    bare.ok("profile", "add", "prod", "--url", "https://codeq.example.org", "--token", SECRET)
    assert [p["name"] for p in bare.ok("profile", "list", "--json").json["profiles"] if p["default"]] == ["dev"]
    bare.ok("profile", "use", "prod")
    assert bare.ok("profile", "show", "--json").json == {
        "name": "prod", "url": "https://codeq.example.org", "token": "kept in the profile", "default": True
    }  # fmt: skip
    assert "variable DEV_TOKEN" in bare.ok("profile", "show", "dev").out
    bare.ok("profile", "remove", "prod")
    assert bare("profile", "show").code == 2
    assert bare("profile", "use", "prod").code == 3
    assert bare("queue", "list", "--profile", "prod").code == 3


def test_no_command_prints_a_token(bare: Cli) -> None:
    said = ""
    for arguments in (
        ("add", "p", "--url", bare.server.base, "--token", SECRET),
        ("list",),
        ("show",),
        ("use", "p"),
    ):
        for extra in ((), ("--json",)):
            done = bare.ok("profile", *arguments, *extra)
            said += done.out + done.err
    failed = bare("queue", "list", "--json")
    assert failed.code == 5
    assert SECRET not in said + failed.out + failed.err
    assert SECRET not in bare("profile", "remove", "p", "--json").out


def test_the_file_is_for_its_owner_alone_and_is_toml(bare: Cli) -> None:
    bare.ok("profile", "add", "p", "--url", "http://127.0.0.1:1", "--token", SECRET)
    file = Path(bare.env["XDG_CONFIG_HOME"]) / "codeq" / "config.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tomllib.loads(file.read_text())["profiles"]["p"] == {"url": "http://127.0.0.1:1", "token": SECRET}
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("token", ['quo"te', "back\\slash", "new\nline", "\x7f\x01", "ümläut", "[x]\n[y]", "'''"])
def test_whatever_is_written_is_read_again(tmp_path: Path, token: str) -> None:
    known = Profiles(default="a", profiles={"a": Profile(url="http://x", token=token), "b.c": Profile(url="http://y")})
    profile_file.save(tmp_path / "config.toml", known)
    assert profile_file.load(tmp_path / "config.toml") == known


def test_a_damaged_file_is_said_to_be_damaged(bare: Cli) -> None:
    file = Path(bare.env["XDG_CONFIG_HOME"]) / "codeq" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("profiles = 3")
    done = bare("queue", "list")
    assert (done.code, "config.toml cannot be read" in done.err) == (1, True)


def test_names_addresses_and_tokens_are_checked(bare: Cli) -> None:
    assert bare("profile", "add", "two words", "--url", "http://x").code == 2
    assert bare("profile", "add", "p", "--url", "example.org").code == 2
    assert bare("profile", "add", "p", "--url", "http://x", "--token", "a", "--token-env", "B").code == 2


def test_a_profile_reaches_its_server_with_its_token(cli: Cli, tmp_path: Path) -> None:
    url, token = cli.env.pop("CODEQ_URL"), cli.env.pop("CODEQ_TOKEN")
    file = tmp_path / "token"
    file.write_text(token + "\n")
    cli.ok("profile", "add", "one", "--url", url, "--token-file", str(file))
    cli.ok("profile", "add", "two", "--url", url, "--token-env", "MINE")
    assert cli.ok("enqueue", "work", "1")
    assert cli.ok("queue", "list", "--profile", "two", "--json", env={"MINE": token}).json["queues"]
    assert cli("queue", "list", env={"CODEQ_PROFILE": "two"}).code == 5  # the variable is not set


def test_flags_win_over_the_environment_and_that_over_profiles(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    file = profile_file.location(home)
    a, b = Profile(url="http://a", token="ta"), Profile(url="http://b", token="tb")
    profile_file.save(file, Profiles(default="a", profiles={"a": a, "b": b}))

    def chosen(environ: dict[str, str], **flags: str) -> tuple[str, object]:
        server = connect.resolve_endpoint(environ={**home, **environ}, url=flags.get("url"), token=flags.get("token"),
                                 profile=flags.get("profile"))  # fmt: skip
        return server.url, server.token

    env = {"CODEQ_URL": "http://env", "CODEQ_TOKEN": "te"}
    assert chosen({}) == ("http://a", "ta")
    assert chosen({"CODEQ_PROFILE": "b"}) == ("http://b", "tb")
    assert chosen(env) == ("http://env", "te")
    assert chosen({**env, "CODEQ_PROFILE": "b"}) == ("http://env", "te")
    assert chosen(env, profile="b") == ("http://b", "tb")
    assert chosen(env, url="http://flag", token="tf") == ("http://flag", "tf")
    assert chosen({"CODEQ_TOKEN": "te"}) == ("http://a", "te")


def test_a_token_of_a_profile_goes_to_no_other_address(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    known = Profiles(default="a", profiles={"a": Profile(url="http://a", token="ta")})
    profile_file.save(profile_file.location(home), known)
    assert connect.resolve_endpoint(environ=home, url="http://elsewhere").token is None
    assert connect.resolve_endpoint(environ=home, profile="a", url="http://elsewhere").token is None


def test_without_anything_it_is_the_development_server_of_this_machine(tmp_path: Path) -> None:
    server = connect.resolve_endpoint(environ={"XDG_CONFIG_HOME": str(tmp_path)})
    assert (server.url, server.token, server.is_explicit) == ("http://127.0.0.1:8080", DEV_TOKEN, False)


def test_a_token_file_is_read_again_when_the_token_is_refused(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    server = connect.resolve_endpoint(url=cli.server.base, token_file=file, environ={})
    assert callable(server.token)
    with server.client() as client:
        file.write_text(cli.env["CODEQ_TOKEN"])
        assert client.queues() == {}
