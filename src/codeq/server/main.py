"""Starts and stops the service: the one place that knows settings, engine and app together."""

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import uvicorn

import codeq
from codeq.clock import SteadyClock
from codeq.distribution import missing_package
from codeq.domain.errors import InvalidRequest, StoreError
from codeq.server import dev, logs, openapi
from codeq.server.app import App
from codeq.server.artifact_metrics import show_artifacts
from codeq.server.auth.callers import FailureLimit
from codeq.server.auth.claims import make_validator
from codeq.server.auth.principal import Authenticator
from codeq.server.auth.static import check_tokens
from codeq.server.background import BackgroundWork
from codeq.server.backups import Backups
from codeq.server.banner import print_banner
from codeq.server.connection import Connection
from codeq.server.connection_limit import ConnectionLimit, connections_that_fit, raise_file_limit
from codeq.server.durability import DurabilityInForce
from codeq.server.garbage import tune_garbage_collector
from codeq.server.inflow import Inflow
from codeq.server.logs import log
from codeq.server.loop_monitor import LoopMonitor
from codeq.server.metrics import Metrics
from codeq.server.metrics_listener import public_routes, serving_metrics
from codeq.server.open_artifacts import open_artifacts
from codeq.server.ratelimit import SCOPES, RateLimiter
from codeq.server.response_head import ResponseHeads
from codeq.server.server_context import ServerContext
from codeq.server.settings import Settings
from codeq.server.shared_ratelimit import SharedRateLimiter
from codeq.server.state import AppState
from codeq.server.tracing import Tracing, set_up
from codeq.server.webhooks.setup import make_dispatcher, make_notifier, make_sender
from codeq.store.data_dir import ARTIFACTS, back_up, open_rocksdb
from codeq.store.interface import Listener, Store
from codeq.usecases.core import make_core
from codeq.usecases.deliver import Backlog
from codeq.usecases.ready_queues import ReadyQueues
from codeq.usecases.waiters import Waiters
from codeq.wire.local_server import is_loopback

EXIT_STORE_FAILED = 70
"""The process's exit code after a failed write: start it again, and it recovers all that it acknowledged."""

CLOCK_AHEAD_S_MAX = 60
"""How far the time of the data may be ahead of the system's clock at start without a warning."""


def run(settings: Settings, *, is_dev: bool = False, banner: bool = True, warnings: Sequence[str] = ()) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit code."""
    check(settings, is_dev=is_dev)
    logs.set_up(settings.log.level, json_lines=settings.log.format == "json")
    for warning in warnings:
        log(logging.WARNING, warning)
    os.umask(0o077)  # what it writes is for its owner alone
    file_limit = raise_file_limit()
    listener = _listen(settings.http.host, settings.http.port)
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - not on every platform

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, listener, file_limit, is_dev=is_dev, banner=banner))
    return asyncio.run(_serve(settings, listener, file_limit, is_dev=is_dev, banner=banner))


def check(settings: Settings, *, is_dev: bool) -> None:
    """Refuses settings that contradict each other or are unsafe."""
    if is_dev:
        if not is_loopback(settings.http.host):
            raise InvalidRequest(
                f"--dev accepts a well-known token, so it listens on loopback only, not {settings.http.host}"
            )
        return
    missing = [name for name in ("producer", "worker") if not getattr(settings.auth, name).name]
    if "producer" in missing or ("worker" in missing and not settings.auth.producers_may_work):
        raise InvalidRequest(
            f"auth.{missing[0]}.provider is not set: "
            "configure who may call (see docs/guides/server.md), or try it with --dev"
        )
    # A provider refuses a configuration that it cannot use.
    _authenticator(settings, Path(), FailureLimit(), is_dev=False)
    for group in (settings.auth.producer, settings.auth.worker):
        check_tokens(group.name, group.config, is_local=is_loopback(settings.http.host))


async def _serve(settings: Settings, listener: socket.socket, file_limit: int, *, is_dev: bool, banner: bool) -> int:
    wanted = settings.metrics
    scrapes = _listen(wanted.host, wanted.port) if wanted.host else None
    state = await _assemble(settings, file_limit, is_dev=is_dev)
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
    app = App(state, public_routes(wanted.host), tasks=uvicorn_state.tasks, on_failure=server.store_failed)
    heads = ResponseHeads(uvicorn_state)
    limit = _connection_limit(settings, file_limit, state.core.shards, is_dev=is_dev)
    context = ServerContext(
        app.begin,
        settings.http,
        heads,
        uvicorn_state.connections,
        limit,
        inflow=Inflow(state.core.turns.is_shared),
        lost=app.connection_lost,
    )
    config.http = lambda **_: Connection(context)  # type: ignore[assignment]
    background = BackgroundWork(state, server.background_ended)
    monitor = LoopMonitor(state.metrics.loop_held)
    if banner:
        print_banner(state, listener, is_dev=is_dev)
    _log_start(state, listener, scrapes, is_dev=is_dev)
    try:
        async with serving_metrics(state, scrapes, heads, server.store_failed):
            await server.serve(sockets=[listener])
    finally:
        monitor.stop()
        await background.stop(grace_s=0 if server.has_failed else settings.http.shutdown_seconds)
        await state.authenticator.close()
        await state.backups.close()
        await state.limiter.close()
        if state.core.artifacts is not None:
            await state.core.artifacts.usage.close()
        try:
            await state.core.close()
        except StoreError:
            if not server.has_failed:  # else it is logged already
                raise
        state.tracing.close()
        log(logging.INFO, "stopped")
    return EXIT_STORE_FAILED if server.has_failed else 0


def _log_start(state: AppState, listener: socket.socket, scrapes: socket.socket | None, *, is_dev: bool) -> None:
    log(
        logging.INFO,
        "started",
        port=listener.getsockname()[1],
        metrics_port=scrapes.getsockname()[1] if scrapes else None,
        durability=state.durability.level,
        store=state.durability.engine,
        survives=state.durability.survives,
        dev=is_dev,
    )


def _connection_limit(settings: Settings, file_limit: int, shards: int, *, is_dev: bool) -> ConnectionLimit:
    wanted, fits = settings.http.connections_max, connections_that_fit(file_limit, shards)
    if fits < wanted:
        log(
            logging.INFO if is_dev else logging.WARNING,
            "the limit on open files allows fewer connections than http.connections_max; raise it (LimitNOFILE)",
            open_files_max=file_limit,
            connections_max=fits,
        )
    return ConnectionLimit(min(wanted, fits), settings.http.connections_per_address_max)


async def _assemble(settings: Settings, file_limit: int, *, is_dev: bool) -> AppState:
    waiters = Waiters()
    metrics = Metrics(settings.metrics.queues_max)
    data = Path(settings.store.path)
    jwks = dev.prepare(data) if is_dev else None
    durability = DurabilityInForce(settings.store)
    backlog = Backlog()
    ready = ReadyQueues()
    listeners: list[Listener] = [waiters, metrics, *([backlog, ready] if settings.webhooks.enabled else [])]
    if settings.store.url:
        store = _open_redis(settings, listeners, durability, metrics=metrics)
    else:
        store = _open_rocksdb(settings, listeners, open_files_max=file_limit // 2)
    failures = FailureLimit(0 if is_dev else settings.auth.failures_per_minute, on_hit=metrics.rate_limited)
    authenticator = _authenticator(settings, data, failures, is_dev=is_dev)
    await authenticator.start()
    tracing = _tracing(settings)
    spans = tracing if tracing.is_on else None
    state = AppState(
        core=make_core(
            store,
            waiters,
            settings.policy(),
            randomness=random.Random(),
            strict_idempotency=settings.idempotency.strict,
            tenant_limits=settings.tenant_limits(),
            sweeping=settings.sweep.sweeping(),
            spans=spans,
            webhook_defaults=settings.webhooks.policy(),
            webhook_rules=settings.webhooks.rules(),
            artifacts=await open_artifacts(settings),
        ),
        settings=settings,
        authenticator=authenticator,
        limiter=_limiter(settings, metrics),
        metrics=metrics,
        tracing=tracing,
        backups=Backups(settings.backup.path, partial(back_up, store, artifacts=_artifacts_in(data, settings))),
        durability=durability,
        jwks=jwks,
    )
    if settings.webhooks.enabled:
        sender = make_sender(settings.webhooks, is_dev=is_dev)
        state.dispatcher = make_dispatcher(state, backlog, sender, process=_process_name())
        state.notifier = make_notifier(state, ready, sender)
    show_artifacts(state)
    description = openapi.describe(public_routes(settings.metrics.host), codeq.__version__)
    state.spec = msgspec.json.encode(description)
    state.docs = openapi.page(description).encode()
    tune_garbage_collector()
    return state


def _artifacts_in(data: Path, settings: Settings) -> Path | None:
    """Returns the directory with artifacts that a backup contains; None if they are stored elsewhere."""
    return None if settings.artifacts.url else data / ARTIFACTS


def _open_rocksdb(settings: Settings, listeners: Sequence[Listener], *, open_files_max: int) -> Store:
    clock = SteadyClock()
    store = open_rocksdb(
        Path(settings.store.path),
        clock=clock,
        shards=None if (Path(settings.store.path) / "codeq.json").exists() else settings.store.shards,
        fsync=settings.store.durability != "process",
        grace_ms=round(settings.leases.grace_seconds * 1000),
        listeners=listeners,
        open_files_max=open_files_max,
    )
    ahead_s = clock() // 1000 - round(time.time())
    if ahead_s > CLOCK_AHEAD_S_MAX:
        log(logging.WARNING, "the newest event is ahead of the system's clock; time goes on from it", ahead_s=ahead_s)
    return store


def _open_redis(
    settings: Settings, listeners: Sequence[Listener], durability: DurabilityInForce, *, metrics: Metrics
) -> Store:
    try:
        from codeq.store.redis.filters import Filters, FilterSize, RotatingFilter  # noqa: PLC0415 - as below
        from codeq.store.redis.opening import RedisOptions, open_redis  # noqa: PLC0415 - needs the extra `redis`
    except ModuleNotFoundError as fault:
        raise InvalidRequest(missing_package("a store in Redis", fault.name, "redis")) from None

    store = settings.store
    wanted = RedisOptions(
        prefix=store.prefix,
        shards=None if store.shards == 1 else store.shards,
        grace_ms=round(settings.leases.grace_seconds * 1000),
        replicas=store.replicas if store.durability == "replicated" else 0,
        replicas_timeout_ms=round(store.replicas_timeout_seconds * 1000),
        is_strict=store.strict,
    )
    sizes = msgspec.convert(msgspec.to_builtins(store.filters), dict[str, FilterSize])
    filters = Filters(**{name: RotatingFilter(size) for name, size in sizes.items()})
    metrics.show_filters(filters.by_name())
    return open_redis(
        store.url,
        wanted,
        process=_process_name(),
        listeners=listeners,
        on_durability=lambda found: durability.told(found.level, found.survives, found.warnings),
        filters=filters,
    )


def _process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


def _limiter(settings: Settings, metrics: Metrics) -> RateLimiter:
    """Returns the limiter of this server; servers on one Redis share their buckets there."""
    limits, store = settings.rate_limit, settings.store
    per_subject = {scope: getattr(limits, scope) for scope in SCOPES}
    per_tenant = {scope: getattr(limits, f"tenant_{scope}") for scope in SCOPES}
    limiter = RateLimiter(per_subject, per_tenant, on_hit=metrics.rate_limited)
    if not store.url or not limiter.is_on:
        return limiter
    from codeq.store.redis.rate_buckets import RedisBuckets  # noqa: PLC0415 - needs the extra `redis`

    shared = RedisBuckets(store.url, store.prefix)
    return SharedRateLimiter(per_subject, per_tenant, shared, on_hit=metrics.rate_limited)


def _authenticator(settings: Settings, data: Path, failures: FailureLimit, *, is_dev: bool) -> Authenticator:
    if is_dev:
        both = make_validator("multi", dev.auth_config(data))
        return Authenticator(both, both, producers_may_work=False)
    auth = settings.auth
    producers = make_validator(auth.producer.name, auth.producer.config)
    workers = make_validator(auth.worker.name, auth.worker.config) if auth.worker.name else producers
    return Authenticator(producers, workers, producers_may_work=auth.producers_may_work, failures=failures)


def _tracing(settings: Settings) -> Tracing:
    wanted = settings.tracing
    if not wanted.enabled:
        return Tracing()
    return set_up(
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
        if self._state.dispatcher is not None:
            self._state.dispatcher.stop_taking()
        asyncio.get_running_loop().call_soon(self._state.core.waiters.end_waits)
        super().handle_exit(sig, frame)

    def store_failed(self) -> None:
        self._fail("the store has failed; stopping, start again to recover")

    def background_ended(self, name: str, task: "asyncio.Task[None]") -> None:
        """Stops the server when what runs in the background has ended by itself: the store has failed, or it has."""
        if task.cancelled() or (task.exception() is None and self._state.is_stopping):
            return
        fault = task.exception()
        if isinstance(fault, StoreError):
            self.store_failed()
        else:
            self._fail(f"{name} failed; stopping, start again to recover", fault)

    def _fail(self, message: str, fault: BaseException | None = None) -> None:
        if not self.has_failed:
            self.has_failed = True
            log(logging.CRITICAL, message, exc_info=fault)
            self.handle_exit(signal.SIGTERM, None)


def _listen(host: str, port: int) -> socket.socket:
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
