"""What the figures were measured on, and how busy it was: a figure without its machine says nothing."""

import os
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]

LOOP_ITERATIONS = 10_000_000
_PROBE_WRITES = 50


class Machine(msgspec.Struct, frozen=True):
    cores: int
    memory_gb: float
    system: str
    python: str
    rocksdict: str
    msgspec: str
    file_system: str
    fsync_ms: float
    """Median time to force 4 KB to this disk, outside of RocksDB: no durable call can be quicker."""


def describe(directory: Path) -> Machine:
    return Machine(
        cores=os.cpu_count() or 1,
        memory_gb=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        rocksdict=version("rocksdict"),
        msgspec=version("msgspec"),
        file_system=file_system(directory),
        fsync_ms=_fsync_ms(directory),
    )


def file_system(directory: Path) -> str:
    """The file system that holds the directory: forcing writes to a tmpfs would cost nothing and prove nothing."""
    mounts = {Path(part.mountpoint): str(part.fstype) for part in psutil.disk_partitions(all=True)}
    return next((mounts[folder] for folder in (directory, *directory.parents) if folder in mounts), "unknown")


def calibrate() -> float:
    """Seconds for ten million turns of an empty loop: 0.27 on a quiet machine of ours, up to 0.8 on a loaded one."""
    started_s = time.perf_counter()
    for _ in range(LOOP_ITERATIONS):
        pass
    return time.perf_counter() - started_s


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of the values are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _fsync_ms(directory: Path) -> float:
    probe = directory / "probe"
    file = os.open(probe, os.O_CREAT | os.O_WRONLY)
    times: list[float] = []
    try:
        for _ in range(_PROBE_WRITES):
            os.write(file, bytes(4096))
            started_s = time.perf_counter()
            os.fdatasync(file)
            times.append(time.perf_counter() - started_s)
    finally:
        os.close(file)
        probe.unlink()
    return statistics.median(times) * 1000
