"""Runs a program with a bound on its time and on its output."""

import os
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from time import monotonic

ERROR_BYTES_SHOWN = 500
PIECE_BYTES = 65_536


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
    """Returns up to `most` bytes, and whether the time ran out. In any case the program has ended, or is ended, with
    every child that it left behind."""
    assert process.stdout is not None
    output, deadline_s = bytearray(), monotonic() + seconds
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(output) < most:
                if not selector.select(max(0.0, deadline_s - monotonic())):
                    return bytes(output), True
                piece = os.read(process.stdout.fileno(), min(PIECE_BYTES, most - len(output)))
                if not piece:
                    process.wait(max(0.0, deadline_s - monotonic()))
                    break
                output += piece
        return bytes(output), False
    except subprocess.TimeoutExpired:
        return bytes(output), True
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
