"""What the workers of these tests do. Functions of a module, so that child processes can import them.

Handlers that must be seen or held up get the name of a file: they leave a line in it when they begin (`began`) and go
on when the file beside it is there (`go`).
"""

import asyncio
import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import codeq

WAIT_S_MAX = 30.0


def echo(payload: Any) -> Any:
    return payload


async def echo_async(payload: Any) -> Any:
    return payload


class Odd(BaseException):
    """An error that is no Exception."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot say")


def _raise(fault: BaseException) -> Any:
    raise fault


ENDS: dict[str, Callable[[codeq.RunningJob], Any]] = {
    "nothing": lambda _: None,
    "second argument": lambda job: [job.id, job.command, job.attempt, job.max_attempts, job.payload],
    "current job": lambda _: codeq.current_job().id,
    "retry raised": lambda _: _raise(codeq.Retry(1800, "later")),
    "retry returned": lambda _: codeq.Retry(1800, "later"),
    "retry by backoff": lambda _: _raise(codeq.Retry()),
    "retry at once": lambda job: codeq.Retry(0) if job.attempt < 3 else job.attempt,
    "retry for ever": lambda _: codeq.Retry(0, "again"),
    "retry in the past": lambda _: codeq.Retry(-1),
    "fail raised": lambda _: _raise(codeq.Fail("no such video", {"seen": 3})),
    "fail returned": lambda _: codeq.Fail("no such video", {"seen": 3}),
    "fail with no words": lambda _: codeq.Fail("", object()),
    "error": lambda _: _raise(ValueError("broken")),
    "exit": lambda _: sys.exit("enough"),
    "keyboard": lambda _: _raise(KeyboardInterrupt()),
    "odd": lambda _: _raise(Odd("odd")),
    "interrupts itself": lambda _: _raise(codeq.Interrupted()),
    "cancels itself": lambda _: _raise(asyncio.CancelledError()),
    "half a character": lambda _: _raise(FileNotFoundError("\udce4.txt")),
    "mute": lambda _: _raise(Mute()),
    "long words": lambda _: _raise(ValueError("x" * 100_000)),
    "not JSON": lambda _: object(),
    "coroutine": lambda _: echo_async(1),
    "too large": lambda _: "x" * (2 << 20),
    "large": lambda _: "x" * 900_000,
}


def end(payload: str, job: codeq.RunningJob) -> Any:
    return ENDS[payload](job)


async def end_async(payload: str, job: codeq.RunningJob) -> Any:
    await asyncio.sleep(0)
    return ENDS[payload](job)


def fail(payload: Any) -> None:
    raise ValueError(f"try of {payload}")


def write_line(path: str, word: str) -> None:
    """Leave a line in the file."""
    with Path(path).open("a") as file:
        file.write(f"{word}\n")


def lines(path: str | Path) -> list[str]:
    return Path(path).read_text().split() if Path(path).exists() else []


def may_go_on(path: str | Path) -> None:
    """Let the handlers of the file go on."""
    Path(f"{path}.go").touch()


def hold_up(path: str) -> str:
    """Begin, wait, and end with "done"; leave a word if that is not to be."""
    write_line(path, f"began:{os.getpid()}")
    try:
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not os.path.exists(f"{path}.go"):
            time.sleep(0.01)
            assert time.monotonic() < deadline_s
    except codeq.Interrupted:
        write_line(path, "interrupted")
        raise
    return "done"


async def hold_up_async(path: str) -> str:
    write_line(path, f"began:{os.getpid()}")
    try:
        async with asyncio.timeout(WAIT_S_MAX):
            while not os.path.exists(f"{path}.go"):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        write_line(path, "interrupted")
        raise
    return "done"


def ignore(path: str) -> str:
    """As `hold_up`, and ignores its interruption."""
    write_line(path, "began")
    while not os.path.exists(f"{path}.go"):
        try:
            time.sleep(0.01)
        except BaseException:  # noqa: BLE001 - that is what it is for
            write_line(path, "ignored")
    return "done"


async def ignore_async(path: str) -> str:
    write_line(path, "began")
    while not os.path.exists(f"{path}.go"):
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            write_line(path, "ignored")
    return "done"


def progress(path: str, job: codeq.RunningJob) -> str:
    job.progress(0.5, "half\nway \udce4")
    return hold_up(path)


async def progress_async(path: str, job: codeq.RunningJob) -> str:
    job.progress(0.5, "half\nway \udce4")
    return await hold_up_async(path)


def work_for(seconds: float) -> str:
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        time.sleep(0.05)
    return "done"


async def work_for_async(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


def hold_the_lock(seconds: float) -> str:
    """Sleep in C with the interpreter lock held: no thread and no event loop of this process moves meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    return "done"


async def block_the_loop(seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for
    return "done"


def crash(how: str) -> Any:
    """End the process in the way that is asked for."""
    if how == "exit":
        os._exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hides":
        os.closerange(3, 4096)  # its pipe among them: the parent sees it end while it lives on
        time.sleep(WAIT_S_MAX)
    if how == "memory":
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, before[1]))
        try:
            return len(bytearray(4 << 30))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
    return os.getpid()


def fork_and_hold_up(path: str) -> str:
    """As `hold_up`, with a child that has everything open that this process has."""
    if os.fork() == 0:
        time.sleep(WAIT_S_MAX)
        os._exit(0)
    return hold_up(path)


def fork(how: str) -> Any:
    """Forks a process that ends in the way that is asked for, and returns its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == "exits":
        sys.exit(3)
    if how == "fails":
        raise ValueError("in the fork")
    return "of the fork"


async def fork_async(how: str) -> Any:
    return fork(how)


def end_fork(seconds: float) -> Any:
    """Ends a process of its own with SIGTERM, as a pool of multiprocessing does, and returns how that has ended."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(seconds,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode


async def end_fork_async(seconds: float) -> Any:
    return end_fork(seconds)


def mark(payload: list[Any]) -> int:
    """Take a moment, and leave the number in the file: `[path, number, seconds]`."""
    path, number, seconds = payload
    time.sleep(seconds)
    write_line(path, str(number))
    return int(number) * 2


async def mark_async(payload: list[Any]) -> int:
    path, number, seconds = payload
    await asyncio.sleep(seconds)
    write_line(path, str(number))
    return int(number) * 2


def attach_files(payload: Any, job: codeq.RunningJob) -> str:
    path = Path(payload["folder"]) / "made.bin"
    path.write_bytes(b"x" * payload["size"])
    job.attach("made.bin", path)
    job.attach("note.txt", b"n" * payload["size"], content_type="text/x-note")
    return "done"


def attach_badly(payload: Any, job: codeq.RunningJob) -> None:
    job.attach("../x", b"1")
