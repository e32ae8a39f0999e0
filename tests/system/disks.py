"""File systems for tests of power loss and full disks. They need root; where they cannot be mounted, tests skip."""

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2


class LoopDisk:
    """An ext4 image on a loop device whose power can be cut: what was not forced to disk is lost."""

    def __init__(self, folder: Path, size_mb: int = 96) -> None:
        self.image = folder / "disk.img"
        self.path = folder / "disk"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_mb << 20)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self.image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.path))  # unmounting releases the loop device

    def unmount(self) -> None:
        _run("umount", str(self.path))

    def cut_power(self) -> None:
        """Stops the file system at once, without writing out what it still holds in memory."""
        directory = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, _FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(directory)


@contextmanager
def loop_disk(folder: Path) -> Iterator[LoopDisk]:
    _need_root()
    try:
        disk = LoopDisk(folder)
    except (OSError, subprocess.CalledProcessError) as fault:
        pytest.skip(f"no loop-mounted ext4 here: {fault}")
    try:
        yield disk
    finally:
        if os.path.ismount(disk.path):
            _run("umount", "--lazy", str(disk.path))  # if a failed test has left files open


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[Path]:
    """Mounts a file system in memory with this much space."""
    _need_root()
    path = folder / "small"
    path.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path))
    except (OSError, subprocess.CalledProcessError) as fault:
        pytest.skip(f"no tmpfs can be mounted here: {fault}")
    try:
        yield path
    finally:
        _run("umount", "--lazy", str(path))  # if a failed test has left files open


def fill(path: Path, leaving_bytes: int) -> Path:
    """Fills the file system up to this much free space. Remove the file to free it."""
    filler = path / "filler"
    space = os.statvfs(path)
    with filler.open("wb", buffering=0) as file:
        if leaving_bytes:
            os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - leaving_bytes))
            return filler
        with suppress(OSError):  # until there is not a page left
            while True:
                file.write(b"x" * 4096)
    return filler


def _need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
