"""The checks of `codeq doctor` on this machine: Python, RocksDB, the disk, the clock, limits, Java."""

import importlib
import importlib.metadata
import os
import platform
import resource
import shutil
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from codeq.cli.output import count, format_duration
from codeq.domain.errors import InvalidRequest, StoreError
from codeq.domain.limits import DISK_RESERVE_BYTES

FSYNCS = 50
FSYNC_S_LEAST, FSYNC_S_SLOW = 0.000_02, 0.05
"""Faster than the first, no disk has written anything; slower than the second, every call waits too long."""
DISK_BYTES_FEW = 1 << 30
FILES_LEAST, FILES_FEW = 512, 4096
"""RocksDB and every connection need one each; the server accepts up to 20 000 connections."""
CLOCK_S = 0.2
UNREADABLE_SHOWN = 100
IN_MEMORY = frozenset({"tmpfs", "ramfs"})


class CheckResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    state: str
    """ok, warning or problem."""
    detail: str
    advice: str | None = None


def ok(name: str, detail: str) -> CheckResult:
    return CheckResult(name=name, state="ok", detail=detail)


def warning(name: str, detail: str, advice: str) -> CheckResult:
    return CheckResult(name=name, state="warning", detail=detail, advice=advice)


def problem(name: str, detail: str, advice: str) -> CheckResult:
    return CheckResult(name=name, state="problem", detail=detail, advice=advice)


def machine(data: Path) -> Iterator[CheckResult]:
    """All checks that need no server."""
    yield python()
    yield engine()
    folder = existing(data)
    if data.is_dir():
        yield permissions(data)
    yield disk_space(folder)
    yield disk_sync(folder)
    yield records(data)
    yield clock()
    yield open_files()
    yield java()


def python() -> CheckResult:
    """For information: codeQ does not start on an older version than it needs."""
    return ok("python", f"{platform.python_version()} at {sys.executable}")


def engine() -> CheckResult:
    try:
        importlib.import_module("rocksdict")
        return ok("rocksdb", f"rocksdict {importlib.metadata.version('rocksdict')}")
    except (ImportError, OSError) as fault:
        return problem("rocksdb", f"rocksdict cannot be loaded: {fault}", "install codeq again for this Python")


def existing(data: Path) -> Path:
    """The directory itself, or its nearest parent that exists: where it would be created."""
    folder = data.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def permissions(data: Path) -> CheckResult:
    mode = stat.S_IMODE(data.stat().st_mode)
    if mode & 0o077:
        return warning("permissions", f"{data} has mode {mode:o}", f"others can read the tasks; run: chmod 700 {data}")
    return ok("permissions", f"{data} is for its owner alone")


def disk_space(folder: Path) -> CheckResult:
    free = shutil.disk_usage(folder).free
    detail = f"{free / (1 << 30):.1f} GiB free at {folder}"
    if free < DISK_RESERVE_BYTES:
        return problem("disk space", detail, "new tasks are refused; free disk space, or move the data")
    if free < DISK_BYTES_FEW:
        return warning("disk space", detail, f"below {DISK_RESERVE_BYTES >> 20} MiB new tasks are refused")
    return ok("disk space", detail)


def disk_sync(folder: Path) -> CheckResult:
    kind = _filesystem(folder)
    try:
        took_s = statistics.median(_sync_times(folder))
    except OSError as fault:
        return problem(
            "fsync", f"{folder}: {fault.strerror}", "the data directory must be on a disk that can be written"
        )
    detail = f"{took_s * 1000:.2f} ms (median of {FSYNCS}) at {folder}{f' ({kind})' if kind else ''}"
    if kind in IN_MEMORY:
        return warning("fsync", detail, "this is memory, not a disk: its contents are lost at a restart of the machine")
    if took_s < FSYNC_S_LEAST:
        return warning("fsync", detail, "too fast: something acknowledges writes before they are on disk")
    if took_s > FSYNC_S_SLOW:
        return warning("fsync", detail, "every acknowledged call waits this long; use a faster disk")
    return ok("fsync", detail)


def clock() -> CheckResult:
    """Tokens and `runAt` are read by the wall clock, so it should run as evenly as the monotonic one."""
    wall_s, steady_s = time.time(), time.monotonic()
    time.sleep(CLOCK_S)
    drift_s = (time.time() - wall_s) - (time.monotonic() - steady_s)
    if abs(drift_s) > CLOCK_S / 10:
        detail = f"jumped by {format_duration(abs(drift_s))} while it was measured"
        return warning("clock", detail, "let the time service slew the clock instead of setting it")
    return ok("clock", "runs evenly")


def open_files() -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    advice = "raise it: ulimit -n 65536, or LimitNOFILE=65536 for a service"
    if soft < FILES_LEAST:
        return problem("open files", f"at most {soft}", advice)
    if soft < FILES_FEW:
        return warning("open files", f"at most {soft}; each connection takes one", advice)
    return ok("open files", f"at most {soft}" + (f" (could be {hard})" if hard > soft else ""))


def records(data: Path) -> CheckResult:
    """Whether the store has met records that it could not read."""
    from codeq.store.data_dir import unreadable  # loads RocksDB

    name = "stored records"
    try:
        found = unreadable(data, UNREADABLE_SHOWN)
    except StoreError as fault:
        return warning(name, str(fault), "stop the server and run this again; if it stays, restore a backup")
    if not found:
        return ok(name, f"none of {data} was set aside as unreadable")
    shown = ", ".join(f"{shard} {key.hex()}" for shard, key in found[:3])
    return problem(
        name,
        f"{len(found)} or more could not be read and were set aside: {shown}",
        "check the disk; everything else is served. Stop the server and run: codeq doctor --repair",
    )


def repair(data: Path) -> CheckResult:
    """Puts tasks that are in no index back; a task in no index is never delivered."""
    from codeq.clock import SteadyClock
    from codeq.store.data_dir import repair as repair_files  # loads RocksDB

    try:
        restored = repair_files(data, clock=SteadyClock())
    except (StoreError, InvalidRequest) as fault:
        return problem("repair", str(fault), "stop what uses the directory; if it stays, restore a backup")
    return ok("repair", f"every task of {data} was looked at; {count(restored, 'task')} put back into a queue")


def java() -> CheckResult:
    """Needed by the data pipeline only."""
    from codeq.pipeline.java import NoJava, describe, find_java

    try:
        find_java()
    except NoJava as fault:
        return warning("java", "no version that Spark supports", str(fault))
    return ok("java", describe())


def _sync_times(folder: Path) -> list[float]:
    took_s = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".codeq-doctor-") as file:
        for _ in range(FSYNCS):
            file.write(os.urandom(4096))
            file.flush()
            started_s = time.perf_counter()
            os.fsync(file.fileno())
            took_s.append(time.perf_counter() - started_s)
    return took_s


def _filesystem(folder: Path) -> str:
    """The type of the file system, such as ext4; empty if unknown."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    above = {str(folder), *map(str, folder.parents)}
    fitting = [(len(mount[1]), number, mount[2]) for number, mount in enumerate(mounts) if mount[1] in above]
    return max(fitting)[2] if fitting else ""
