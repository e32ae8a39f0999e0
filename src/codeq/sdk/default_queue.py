"""The queue of tasks that were declared without a worker: a client by the environment, or what the program says."""

import threading

from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.client import Client
from codeq.sdk.verbs import Verbs

_lock = threading.Lock()
_default: BlockingVerbs | Verbs | None = None


def set_default_queue(queue: BlockingVerbs | Verbs | None) -> None:
    """Makes this the queue of `enqueue` and `wait` of tasks that were declared with `codeq.task`. With None it is the
    server of CODEQ_URL again, with the token of CODEQ_TOKEN."""
    global _default  # noqa: PLW0603 - one per process, as the environment
    _default = queue


def default_queue() -> BlockingVerbs | Verbs:
    global _default  # noqa: PLW0603
    if _default is None:
        with _lock:
            if _default is None:
                _default = Client()
    return _default
