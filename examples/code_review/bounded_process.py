"""Runs a program with a bound on its time and on its output."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Timer

ERROR_BYTES_SHOWN = 500


class ProcessFailed(Exception):
    """The program ended with an error."""


class TookTooLong(ProcessFailed):
    """The program was ended because its time was over."""


class WroteTooMuch(ProcessFailed):
    """The program was ended because it wrote more than was allowed."""


def run_bounded(
    command: Sequence[str],
    *,
    seconds: float,
    output_max: int,
    env: Mapping[str, str],
    cwd: Path | None = None,
    given: bytes = b"",
) -> bytes:
    """Returns what the program wrote to its standard output; `given` is its standard input. No shell is involved."""
    with TemporaryFile() as stdin, TemporaryFile() as stderr:
        stdin.write(given)
        stdin.seek(0)
        with subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            cwd=cwd,
            start_new_session=True,  # so that its children can be ended with it
        ) as process:
            output, is_late = _read(process, seconds, output_max + 1)
        if is_late:
            raise TookTooLong(f"{command[0]} took longer than {seconds:g} s")
        if len(output) > output_max:
            raise WroteTooMuch(f"{command[0]} wrote more than {output_max} bytes")
        if process.returncode != 0:
            stderr.seek(0)
            said = stderr.read(ERROR_BYTES_SHOWN).decode(errors="backslashreplace").strip()
            raise ProcessFailed(f"{command[0]} ended with {process.returncode}: {said}")
        return output


def _read(process: "subprocess.Popen[bytes]", seconds: float, most: int) -> tuple[bytes, bool]:
    """Returns up to `most` bytes, and whether the time ran out. In any case the program has ended, or is ended."""
    assert process.stdout is not None
    is_late = Event()

    def end_late() -> None:
        is_late.set()
        _end(process)

    timer = Timer(seconds, end_late)
    timer.start()
    try:
        output = process.stdout.read(most)
        if len(output) >= most:
            _end(process)
        process.wait()
    finally:
        timer.cancel()
        _end(process)
    return output, is_late.is_set()


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
