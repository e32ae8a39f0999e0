"""Runs the `codeq` command as a user does: in this process, in one of its own, or in a terminal."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from tests.server.server_process import Server, command_line, environment
from typer.main import get_command
from typer.testing import CliRunner

from codeq.cli.main import app
from codeq.server.dev import ALL_SCOPES

OWN_SCOPES = [scope for scope in ALL_SCOPES if scope != "codeq:platform"]

COMMAND = get_command(app)
"""Built once: that takes longer than most commands do."""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document that was printed."""
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """The one JSON document on standard error."""
        return msgspec.json.decode(self.err)


class Started(subprocess.Popen[str]):
    """A process that a test which fails does not wait for."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


class Cli:
    """A shell with a server and a token that may do everything in one tenant."""

    def __init__(self, server: Server, tenant: str, home: Path) -> None:
        self.server = server
        self.tenant = tenant
        self.env = {
            "CODEQ_URL": server.base,
            "CODEQ_TOKEN": server.token(tenant, "worker", subject="me", scopes=OWN_SCOPES),
            "XDG_CONFIG_HOME": str(home),
        }

    def __call__(self, *arguments: str, stdin: str | None = None, env: Mapping[str, Any] | None = None) -> Done:
        """Runs a command in this process."""
        assert "serve" not in arguments or "--help" in arguments
        with mock.patch("typer.testing._get_command", return_value=COMMAND):
            done = CliRunner().invoke(app, arguments, input=stdin, env={**self.env, **(env or {})})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Done(done.exit_code, done.stdout, done.stderr)

    def ok(self, *arguments: str, **given: Any) -> Done:
        done = self(*arguments, **given)
        assert done.code == 0, done
        return done

    def start(self, *arguments: str, **given: Any) -> "Started":
        """Starts a command in a process of its own, with pipes."""
        return Started(
            command_line(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment({**self.env, "PYTHONUNBUFFERED": ""}),  # output is buffered, as it is for users
            **{"stdin": subprocess.DEVNULL, **given},
        )

    def terminal(self, *arguments: str) -> "Terminal":
        return Terminal(list(arguments), environment({**self.env, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "120"}))

    def enqueued(self, command: str = "work", payload: str = "1", *options: str) -> str:
        return self.ok("enqueue", command, payload, *options).out.strip()

    def claimed(self, command: str = "work") -> tuple[str, str]:
        task_id, token, *_ = self.ok("claim", command).out.split("\t")
        return task_id, token

    def dead(self, command: str = "work", reason: str = "broken") -> str:
        self.enqueued(command, "1", "--max-attempts", "1")
        task_id, token = self.claimed(command)
        self.ok("nack", task_id, "--lease-token", token, "--reason", reason)
        return task_id


class Terminal:
    """A command that runs in a pseudo-terminal."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        self.seen = ""
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command_line(*arguments), stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)

    def until(self, text: str, within_s: float = 20) -> None:
        deadline_s = time.monotonic() + within_s
        while text not in self.seen:
            assert time.monotonic() < deadline_s, f"{text!r} did not come: {self.seen!r}"
            if select.select([self._master], [], [], 0.1)[0] and not self._read():
                break
        assert text in self.seen, self.seen

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, within_s: float = 20) -> int:
        """Reads all output. Returns the exit code."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            if select.select([self._master], [], [], 0.1)[0]:
                if not self._read():
                    break
            elif self.process.poll() is not None:
                break
        return self.process.wait(max(0.1, deadline_s - time.monotonic()))

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # on Linux, when the other side is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)
