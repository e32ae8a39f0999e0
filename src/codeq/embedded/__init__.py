"""How a program uses a queue without a server: `codeq.open("./data")` has every verb, blocking or as coroutines.

Imports sdk, usecases and store.
"""

from codeq.embedded.aio import AsyncQueue, open_async
from codeq.embedded.blocking import Queue, open

__all__ = ["AsyncQueue", "Queue", "open", "open_async"]
