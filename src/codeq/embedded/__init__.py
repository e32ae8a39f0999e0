"""How does a program use a queue without a server? `codeq.open("./data")` gives every verb of the queue, blocking or as
coroutines. Imports `sdk`, `usecases` and `store`.
"""

from codeq.embedded.aio import AsyncQueue, open_async
from codeq.embedded.blocking import Queue, open

__all__ = ["AsyncQueue", "Queue", "open", "open_async"]
