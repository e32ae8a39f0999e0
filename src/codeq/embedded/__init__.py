"""codeQ inside your process: `codeq.open("./data")`, with every verb of the queue, blocking or awaited."""

from codeq.embedded.aio import AsyncQueue, open_async
from codeq.embedded.blocking import Queue, open

__all__ = ["AsyncQueue", "Queue", "open", "open_async"]
