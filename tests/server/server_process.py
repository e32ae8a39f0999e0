"""A real `codeq serve` in its own process, on a free loopback port, and its callers.

    with start_server(tmp_path) as server:              # --dev unless dev=False
        acme = server.tenant("acme")
        task = acme.producer.post(paths.TASKS, {"command": "work", "payload": 1}).json()
        held = acme.worker.post(paths.CLAIM, {"commands": ["work"]}).json()

`server.request` sends anything; `server.token` makes tokens of a development server. `EXERCISED` holds responses of
all servers here, by route, so that a test can find routes that no test has called.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import httpx
import yaml
from tests.server.stores import ENGINE, with_store

from codeq.server.dev import make_token
from codeq.server.routes import ROUTES
from codeq.wire import paths
from codeq.wire.local_server import DEV_TOKEN

START_S_MAX = 30.0
STOP_S_MAX = 20.0

SAMPLES_MAX = 50
EXERCISED: dict[tuple[str, str], dict[int, list[bytes]]] = {(route.method, route.path): {} for route in ROUTES}
"""By method and path of the route, and by status: the first JSON bodies of such responses."""

_BANNER = re.compile(r"at http://[^ ]*:(\d+), (?:data|tasks) in")
_SHAPES = [
    (route.method, route.path, re.compile(re.sub(r"{\w+}", "[^/]+", route.path)))
    for route in sorted(ROUTES, key=lambda route: route.path.count("{"))
]
_numbers = count(1)

Found = TypeVar("Found")


class Server:
    """A running server. `data` is its data directory, `log` the file with its standard error."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, data: Path, log: Path) -> None:
        self.process = process
        self.port = port
        self.data = data
        self.log = log
        self.base = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.base, timeout=70, trust_env=False)
        self.client.event_hooks["response"] = [_record]

    @property
    def pid(self) -> int:
        return self.process.pid

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = DEV_TOKEN,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        **rest: Any,
    ) -> httpx.Response:
        """Sends one request. `body` is sent as JSON; use `content=` for bytes, `params=` for the query."""
        pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
        if token is not None:
            pairs.append(("Authorization", f"Bearer {token}"))
        if body is not None:
            rest["json"] = body
        return self.client.request(method, path, headers=pairs, **rest)

    def token(
        self,
        tenant: str = "acme",
        role: str = "producer",
        *,
        subject: str | None = None,
        commands: Sequence[str] = (),
        scopes: Sequence[str] | None = None,
        ttl_s: int = 3600,
    ) -> str:
        """Returns a token signed with the key of a development server; see `codeq token`."""
        return make_token(
            self.data,
            tenant=tenant,
            role=role,
            subject=subject or f"{tenant}-{role}",
            commands=list(commands),
            scopes=None if scopes is None else list(scopes),
            ttl_s=ttl_s,
        )

    def tenant(self, name: str | None = None) -> "Tenant":
        """Returns a tenant to call as; without a name, one that no test has used before."""
        return Tenant(self, name or f"tenant-{next(_numbers)}")

    def log_text(self) -> str:
        return self.log.read_text()

    def stop(self) -> int:
        """Stops the server by SIGTERM and waits until it has ended. Returns its exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S_MAX)

    def kill(self) -> None:
        """Kills the server as a crash would."""
        self.client.close()
        self.process.kill()
        self.process.wait(STOP_S_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()


class Caller:
    """A client with a token."""

    def __init__(self, server: Server, token: str) -> None:
        self.server = server
        self.token = token

    def request(self, method: str, path: str, body: Any = None, **rest: Any) -> httpx.Response:
        return self.server.request(method, path, body, token=self.token, **rest)

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self.request("GET", path, params=query or None)

    def post(self, path: str, body: Any = None, **rest: Any) -> httpx.Response:
        return self.request("POST", path, body, **rest)

    def put(self, path: str, body: Any = None, **rest: Any) -> httpx.Response:
        return self.request("PUT", path, body, **rest)

    def delete(self, path: str, **query: Any) -> httpx.Response:
        return self.request("DELETE", path, params=query or None)


class Tenant:
    """A tenant of a development server: a producer, a worker and an admin, and calls that tests often need."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    @cached_property
    def producer(self) -> Caller:
        return Caller(self.server, self.server.token(self.name, "producer"))

    @cached_property
    def worker(self) -> Caller:
        """A worker for every command, with every scope of workers; its name is `<tenant>-worker`."""
        return self.worker_named(f"{self.name}-worker")

    @cached_property
    def admin(self) -> Caller:
        return Caller(self.server, self.server.token(self.name, "admin"))

    def worker_named(
        self, subject: str, *, commands: Sequence[str] = (), scopes: Sequence[str] | None = None
    ) -> Caller:
        token = self.server.token(self.name, "worker", subject=subject, commands=commands, scopes=scopes)
        return Caller(self.server, token)

    def create(self, command: str = "work", payload: Any = 1, **fields: Any) -> dict[str, Any]:
        """Creates a task. Returns it as in the response."""
        body = {"command": command, "payload": payload, **fields}
        task: dict[str, Any] = answered(self.producer.post(paths.TASKS, body), 202)
        return task

    def claim(self, *commands: str, worker: Caller | None = None, **fields: Any) -> dict[str, Any]:
        """Claims a task that must exist: of these commands, or of `work`."""
        body = {"commands": list(commands or ("work",)), **fields}
        task: dict[str, Any] = answered((worker or self.worker).post(paths.CLAIM, body), 200)
        return task

    def held(self, command: str = "work", **fields: Any) -> dict[str, Any]:
        """Returns a new task, claimed by `worker`; the queue must have been empty."""
        made = self.create(command, **fields)
        claimed = self.claim(command)
        assert claimed["id"] == made["id"]
        return claimed

    def ended(self, command: str = "work", result: Any = None, **fields: Any) -> dict[str, Any]:
        """Returns a new task, completed with a result."""
        task = self.held(command, **fields)
        outcome = {"status": "COMPLETED", "result": result if result is not None else {"ok": True}}
        answered(self.worker.post(at(paths.RESULT, task["id"]), outcome), 200)
        return self.task(task["id"])

    def dead(self, command: str = "work", reason: str = "broken", **fields: Any) -> dict[str, Any]:
        """Returns a new task in the dead-letter queue."""
        task = self.held(command, maxAttempts=1, **fields)
        answer = answered(self.worker.post(at(paths.NACK, task["id"]), {"reason": reason}), 200)
        assert answer["status"] == "dlq"
        return self.task(task["id"])

    def task(self, task_id: str) -> dict[str, Any]:
        task: dict[str, Any] = answered(self.producer.get(at(paths.TASK, task_id)), 200)
        return task

    def counts(self, command: str = "work") -> dict[str, Any]:
        counts: dict[str, Any] = answered(self.admin.get(at(paths.ADMIN_QUEUE, command)), 200)
        return counts


@contextmanager
def start_server(
    folder: Path,
    *,
    dev: bool = True,
    settings: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    data: Path | None = None,
    ready: bool = True,
    open_files: int | None = None,
    open_files_hard: int | None = None,
    engine: str = ENGINE,
) -> Iterator[Server]:
    """Starts a server with its data, settings and log below `folder`; stopped at the end if it still runs.

    `settings` is the content of the YAML file. Start again on the same `folder` for the same data. `open_files` limits
    its open files, by the soft limit only if there is another hard one.
    """
    server = launch(
        folder,
        dev=dev,
        settings=settings,
        env=env,
        data=data,
        ready=ready,
        before=_limited(open_files, open_files_hard),
        engine=engine,
    )
    with server:
        yield server


def launch(
    folder: Path,
    *,
    dev: bool = True,
    settings: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    data: Path | None = None,
    ready: bool = True,
    port: int = 0,
    before: Sequence[str] = (),
    engine: str = ENGINE,
) -> Server:
    """As `start_server`, but the caller must stop it (`stop`, `kill` or `with`). Port 0 picks a free one; `before` is
    a command that runs the server, as `fiu-run` does."""
    folder.mkdir(parents=True, exist_ok=True)
    data = data or folder / "data"
    config, log, out = folder / "settings.yaml", folder / "stderr.log", folder / "stdout.log"
    config.write_text(yaml.safe_dump(with_store(settings, env, data=data, engine=engine)))
    arguments = [
        "serve",
        "--config",
        str(config),
        "--data",
        str(data),
        "--port",
        str(port),
        *(["--dev"] if dev else []),
    ]
    with out.open("wb") as stdout, log.open("ab") as stderr:
        process = subprocess.Popen(
            [*before, *command_line(*arguments)],
            stdout=stdout,
            stderr=stderr,
            env=environment(env),
            start_new_session=True,
        )
    try:
        heard = eventually(lambda: _port(process, out, log), START_S_MAX, every_s=0.02)
        server = Server(process, heard, data, log)
        if ready:
            eventually(lambda: _is_alive(server), START_S_MAX, every_s=0.02)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return server


def _limited(open_files: int | None, hard: int | None) -> list[str]:
    if open_files is None:
        return []
    return [
        "sh",
        "-c",
        'ulimit -S -n "$0" && ulimit -H -n "$1" && shift && exec "$@"',
        str(open_files),
        str(hard or open_files),
    ]


def command_line(*arguments: str) -> list[str]:
    """Returns the command line of the `codeq` command of the code under test."""
    return [sys.executable, "-c", "from codeq.cli.main import app; app()", *arguments]


class Latency(NamedTuple):
    """How long a call takes, or the 99th percentile of several."""

    clock_s: float
    loop_s: float
    """What the event loop's thread computed from the request to the response."""

    def __str__(self) -> str:
        return f"{self.clock_s * 1000:.1f} ms ({self.loop_s * 1000:.1f} ms of the loop)"


def loop_cpu_s(server: Server) -> float:
    """Returns what the server's main thread, which runs the event loop, has computed so far."""
    return int(Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text().split()[0]) / 1e9


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns this process's variables without settings of codeQ, and `extra`."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("CODEQ_", "OTEL_"))}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "200", **(extra or {})}


def run_codeq(
    *arguments: str, env: Mapping[str, str] | None = None, within_s: float = 30
) -> "subprocess.CompletedProcess[str]":
    """Runs the `codeq` command to its end; kills it, and fails, if it does not end in time."""
    return subprocess.run(
        command_line(*arguments), capture_output=True, text=True, timeout=within_s, env=environment(env), check=False
    )


def eventually(look: Callable[[], Found], within_s: float = 10.0, *, every_s: float = 0.02) -> Found:
    """Returns the first true result of `look`; fails if there is none within the time."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline_s:
            raise AssertionError(f"still {found!r} after {within_s} s")
        time.sleep(every_s)


@contextmanager
def waiting(
    caller: Caller, method: str, path: str, body: Any = None, **rest: Any
) -> Iterator["Future[httpx.Response]"]:
    """Sends a request that waits for an event. Inside the block it has arrived and waits."""
    is_sent = threading.Event()

    def watch(name: str, _: Any) -> None:
        if name == "http11.send_request_body.complete":
            is_sent.set()

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(caller.request, method, path, body, extensions={"trace": watch}, **rest)
        assert is_sent.wait(10)
        for _ in range(3):  # when these have responses, what was sent before them is in process
            caller.server.client.get(paths.HEALTHZ)
        yield answer


def at(path: str, value: str) -> str:
    """Returns the path of a route with its one parameter filled in."""
    return re.sub(r"{\w+}", value, path)


def answered(response: httpx.Response, status: int) -> Any:
    """Returns the JSON of a response that has this status."""
    assert response.status_code == status, f"{response.status_code}, not {status}: {response.text}"
    return response.json() if response.content else None


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Returns the body of a refusal with this status and this code."""
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["code"]) == (status, code), f"{response.status_code}: {response.text}"
    assert isinstance(body["error"], str)
    assert body["error"]
    return body


def _record(response: httpx.Response) -> None:
    path = response.request.url.path
    for method, route, shape in _SHAPES:
        if method == response.request.method and shape.fullmatch(path):
            samples = EXERCISED[method, route].setdefault(response.status_code, [])
            if len(samples) < SAMPLES_MAX and response.headers.get("content-type") == "application/json":
                samples.append(response.read())
            return


def _port(process: "subprocess.Popen[bytes]", out: Path, log: Path) -> int:
    found = _BANNER.search(out.read_text())
    if not found and process.poll() is not None:
        raise AssertionError(f"the server ended with {process.returncode}: {log.read_text()[-4000:]}")
    return int(found[1]) if found else 0


def _is_alive(server: Server) -> bool:
    try:
        return server.client.get(paths.HEALTHZ).status_code == 200
    except httpx.TransportError:
        return False
