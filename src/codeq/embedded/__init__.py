"""codeQ inside your process: `codeq.open("./data")`, with every verb of the queue, blocking or awaited."""

from codeq.embedded.aio import AsyncQueue, make_core, open_async
from codeq.embedded.blocking import Queue, open

__all__ = ["AsyncQueue", "Queue", "make_core", "open", "open_async"]
