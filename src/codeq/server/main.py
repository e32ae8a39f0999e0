"""Starts and stops the service: the one place that knows settings, engine and app together."""

import asyncio
import contextlib
import logging
import random
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

import codeq
from codeq.domain.errors import InvalidRequest, StoreError
from codeq.server import dev, logs, openapi, tracing
from codeq.server.app import App
from codeq.server.auth.claims import make_validator
from codeq.server.auth.principal import Authenticator
from codeq.server.connection import Connection, ServerContext
from codeq.server.logs import log
from codeq.server.metrics import Metrics
from codeq.server.ratelimit import RateLimiter
from codeq.server.response_head import ResponseHeads
from codeq.server.routes import ROUTES
from codeq.server.settings import Settings
from codeq.server.state import AppState
from codeq.server.tracing import Tracing
from codeq.store.data_dir import open_rocksdb
from codeq.store.interface import Listener, Store
from codeq.usecases import sweep
from codeq.usecases.core import make_core
from codeq.usecases.waiters import Waiters
from codeq.wire.local_server import is_loopback

EXIT_STORE_FAILED = 70
"""The process's exit code after a failed write: start it again, and it recovers all that it acknowledged."""


def run(settings: Settings, *, is_dev: bool = False, banner: bool = True) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit code."""
    check(settings, is_dev=is_dev)
    logs.set_up(settings.log.level, json_lines=settings.log.format == "json")
    listener = _listen(settings)
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - not on every platform

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, listener, is_dev=is_dev, banner=banner))
    return asyncio.run(_serve(settings, listener, is_dev=is_dev, banner=banner))


def check(settings: Settings, *, is_dev: bool) -> None:
    """Refuses settings that contradict each other or are unsafe."""
    if is_dev:
        if not is_loopback(settings.http.host):
            raise InvalidRequest(
                f"--dev accepts a well-known token, so it listens on loopback only, not {settings.http.host}"
            )
        return
    missing = [name for name in ("producer", "worker") if not getattr(settings.auth, name).provider]
    if "producer" in missing or ("worker" in missing and not settings.auth.producers_may_work):
        raise InvalidRequest(
            f"auth.{missing[0]}.provider is not set: "
            "configure who may call (see docs/guides/server.md), or try it with --dev"
        )
    _authenticator(settings, Path(), is_dev=False)  # a provider refuses a configuration that it cannot use


async def _serve(settings: Settings, listener: socket.socket, *, is_dev: bool, banner: bool) -> int:
    state = await _assemble(settings, is_dev=is_dev)
    config = uvicorn.Config(
        _no_asgi,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=max(1, int(settings.http.shutdown_seconds)),
        backlog=2048,
    )
    server = _Server(config, state)
    uvicorn_state = server.server_state
    app = App(state, ROUTES, tasks=uvicorn_state.tasks, on_failure=server.store_failed)
    heads = ResponseHeads(lambda: uvicorn_state.default_headers)
    context = ServerContext(app.begin, settings.http, heads, uvicorn_state.connections)
    config.http = lambda **_: Connection(context)  # type: ignore[assignment]
    sweeping = asyncio.create_task(
        sweep.run(
            state.core,
            events_keep_ms=settings.retention.events_seconds * 1000,
            events_keep_max=settings.retention.events_max,
        )
    )
    if banner:
        _print_banner(settings, listener, is_dev=is_dev)
    log(logging.INFO, "started", port=listener.getsockname()[1], durability=settings.store.durability, dev=is_dev)
    try:
        await server.serve(sockets=[listener])
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await state.authenticator.close()
        try:
            await state.core.close()
        except StoreError:
            if not server.has_failed:  # else it is logged already
                raise
        state.tracing.close()
        log(logging.INFO, "stopped")
    return EXIT_STORE_FAILED if server.has_failed else 0


async def _assemble(settings: Settings, *, is_dev: bool) -> AppState:
    waiters = Waiters()
    metrics = Metrics()
    data = Path(settings.store.path)
    jwks = dev.prepare(data) if is_dev else None
    store = _open_store(settings, [waiters, metrics])
    authenticator = _authenticator(settings, data, is_dev=is_dev)
    await authenticator.start()
    limits = settings.rate_limit
    state = AppState(
        core=make_core(store, waiters, settings.policy(), randomness=random.Random()),
        settings=settings,
        authenticator=authenticator,
        limiter=RateLimiter(
            {"producer": limits.producer, "worker": limits.worker, "admin": limits.admin},
            {"producer": limits.tenant_producer, "worker": limits.tenant_worker},
            on_hit=metrics.rate_limited,
        ),
        metrics=metrics,
        tracing=_tracing(settings),
        jwks=jwks,
    )
    description = openapi.describe(ROUTES, codeq.__version__)
    state.spec = msgspec.json.encode(description)
    state.docs = openapi.page(description).encode()
    return state


def _open_store(settings: Settings, listeners: Sequence[Listener]) -> Store:
    import time  # noqa: PLC0415 - the only clock of the service is chosen here

    return open_rocksdb(
        Path(settings.store.path),
        clock=lambda: time.time_ns() // 1_000_000,
        shards=None if (Path(settings.store.path) / "codeq.json").exists() else settings.store.shards,
        fsync=settings.store.durability == "fsync",
        grace_ms=round(settings.leases.grace_seconds * 1000),
        listeners=listeners,
    )


def _authenticator(settings: Settings, data: Path, *, is_dev: bool) -> Authenticator:
    if is_dev:
        both = make_validator("multi", dev.auth_config(data))
        return Authenticator(both, both, producers_may_work=False)
    auth = settings.auth
    producers = make_validator(auth.producer.provider, auth.producer.config)
    workers = make_validator(auth.worker.provider, auth.worker.config) if auth.worker.provider else producers
    return Authenticator(producers, workers, producers_may_work=auth.producers_may_work)


def _tracing(settings: Settings) -> Tracing:
    wanted = settings.tracing
    if not wanted.enabled:
        return Tracing()
    return tracing.set_up(
        service=wanted.service_name, endpoint=wanted.endpoint, insecure=wanted.insecure, ratio=wanted.sample_ratio
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, state: AppState) -> None:
        super().__init__(config)
        self._state = state
        self.has_failed = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stops on SIGTERM and SIGINT, with our own exit code: uvicorn would end by raising the signal again."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self.handle_exit, sig, None)
        yield

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Completes waiting calls at once; the others have until the timeout."""
        self._state.is_stopping = True
        asyncio.get_running_loop().call_soon(self._state.core.waiters.end_waits)
        super().handle_exit(sig, frame)

    def store_failed(self) -> None:
        if not self.has_failed:
            self.has_failed = True
            log(logging.CRITICAL, "the store has failed; stopping, start again to recover")
            self.handle_exit(signal.SIGTERM, None)


def _listen(settings: Settings) -> socket.socket:
    host, port = settings.http.host, settings.http.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as fault:
        listener.close()
        raise InvalidRequest(f"cannot listen on {host}:{port}: {fault.strerror}; choose another --port") from None
    listener.set_inheritable(True)
    return listener


async def _no_asgi(scope: Any, receive: Any, send: Any) -> None:
    """The app that uvicorn requires; our connections do not call it."""


def _print_banner(settings: Settings, listener: socket.socket, *, is_dev: bool) -> None:
    base = f"http://{settings.http.host}:{listener.getsockname()[1]}"
    lines = [f"codeQ {codeq.__version__} at {base}, data in {settings.store.path} ({settings.store.durability})"]
    if is_dev:
        lines.append(_WALK.replace("@BASE@", base))
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


_WALK = """API description: @BASE@/docs

Try it:
  curl -s @BASE@/v1/codeq/tasks -H 'Authorization: Bearer dev-token' -d '{"command":"hello","payload":{"to":"world"}}'
  curl -s @BASE@/v1/codeq/tasks/claim -H 'Authorization: Bearer dev-token' -d '{"commands":["hello"],"waitSeconds":5}'

`dev-token` is producer, worker and admin of tenant `dev`. Other tenants: codeq token --data DIR --tenant T --role ROLE
"""
