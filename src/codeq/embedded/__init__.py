"""codeQ inside your process: `codeq.open("./data")`, with every verb of the queue, blocking or awaited."""

from codeq.embedded.aio import AsyncQueue, Job, Kept, make_core, new_tasks, open_async
from codeq.embedded.blocking import Bridge, Queue, open

__all__ = ["AsyncQueue", "Bridge", "Job", "Kept", "Queue", "make_core", "new_tasks", "open", "open_async"]
