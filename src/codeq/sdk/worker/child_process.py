"""The child's side of `processes.py`: receives jobs over a pipe, runs their handlers, sends what comes of them."""

import contextlib
import io
import multiprocessing
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import Connection
from types import FunctionType
from typing import Any

import msgspec

from codeq.sdk.definitions import TaskDefinition
from codeq.sdk.jobs import Job
from codeq.sdk.tracing import look_for_tracing
from codeq.sdk.worker.execution import described, run_handler
from codeq.sdk.worker.handler import Handler
from codeq.sdk.worker.outcomes import DROPPED, Interrupted, JobOutcome
from codeq.sdk.worker.parent_death import die_with_parent
from codeq.sdk.worker.running_job import AttachedFile, RunningJob, name_tasks_in_logs
from codeq.sdk.worker.signals import give_forks
from codeq.sdk.worker.task_logs import forward_logs
from codeq.wire.errors import error_of

_PIPE_BYTES = 64 * 1024
READY = "ready"

ChildMessage = str | JobOutcome | dict[str, Any]
"""What a child sends: first `ready`, or why it cannot start; then, for each job, progress texts, files to upload (the
fields of an `AttachedFile`), log records (with `levelno`), and finally the outcome. To each file it gets an answer:
nothing, or the code and text of an error."""

encode_message = msgspec.msgpack.Encoder().encode
_decode_job = msgspec.msgpack.Decoder(Job).decode
_decode_refusal = msgspec.msgpack.Decoder(tuple[str, str] | None).decode
decode_message = msgspec.msgpack.Decoder(ChildMessage).decode


class _HandlerPickler(pickle.Pickler):
    """Pickles functions by their names, also where the name in the module is that of their `TaskDefinition`."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            module, name = value.__module__, value.__qualname__
            found = _found(module, name)
            if isinstance(found, TaskDefinition) and found.function is value:
                return _function_of, (module, name)
        return NotImplemented


def pickled(handlers: dict[str, Handler]) -> bytes:
    buffer = io.BytesIO()
    _HandlerPickler(buffer).dump(handlers)
    return buffer.getvalue()


def _found(module: str, name: str) -> Any:
    value = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _function_of(module: str, name: str) -> Any:
    import_module(module)
    found = _found(module, name)
    return found.function if isinstance(found, TaskDefinition) else found


def run_jobs(pipe: Connection, pickled_handlers: bytes, parent: int, levels: dict[str, int]) -> None:
    """The main function of a child: receives a job, runs its handler, sends the outcome, and so on."""
    # The parent decides when to stop, also if the whole process group gets the signal. A handler that does nothing is,
    # unlike SIG_IGN, not inherited by programs that are started from here.
    give_forks({number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)})
    multiprocessing.current_process().daemon = False  # or its handlers could not use multiprocessing
    die_with_parent(parent)
    name_tasks_in_logs()
    lock = threading.Lock()

    def send(message: ChildMessage) -> None:
        with lock:
            pipe.send_bytes(encode_message(message))

    def report(_: str, text: str) -> None:
        with contextlib.suppress(OSError):
            send(text)

    attaching = threading.Lock()

    def attach(file: AttachedFile) -> None:
        """Has the parent upload the file: it has the connection, and the lease."""
        with attaching, _as_path(file) as passed:
            send(msgspec.structs.asdict(passed))
            refusal = _decode_refusal(pipe.recv_bytes())
        if refusal is not None:
            raise error_of(*refusal)

    forward_logs(levels, send)
    with contextlib.suppress(EOFError, OSError):
        try:
            handlers: dict[str, Handler] = pickle.loads(pickled_handlers)  # noqa: S301 - made by the parent
            for handler in handlers.values():
                handler.signature.check()  # now, so that it costs no job its time
        except BaseException as fault:
            send(described(fault))
            raise
        send(READY)
        while True:
            job = _decode_job(pipe.recv_bytes())
            look_for_tracing()
            outcome = DROPPED
            with contextlib.suppress(Interrupted):  # raised by the handler itself: the parent interrupts with SIGKILL
                outcome = run_handler(handlers[job.command], RunningJob(job, report, attach))
            with contextlib.suppress(AttributeError, ValueError, OSError):
                sys.stdout.flush()
            send(outcome)


@contextlib.contextmanager
def _as_path(file: AttachedFile) -> Iterator[AttachedFile]:
    """Writes content that is too long for a pipe to a temporary file."""
    if file.content is None or len(file.content) <= _PIPE_BYTES:
        yield file
        return
    with tempfile.NamedTemporaryFile(prefix="codeq-artifact-") as passed:
        passed.write(file.content)
        passed.flush()
        yield msgspec.structs.replace(file, content=None, path=passed.name)
