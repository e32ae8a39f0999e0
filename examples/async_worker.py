"""A worker for tasks that wait for the network: hundreds at once, on one event loop.

make serve                                                                     # one terminal
CODEQ_TOKEN=dev-token .venv/bin/python examples/async_worker.py                # another; Ctrl-C stops it

.venv/bin/python -c 'import codeq
queue = codeq.Client(token="dev-token")
print(queue.wait(queue.enqueue("fetch", {"url": "https://example.org"}).id))'
"""

import asyncio
import os
from typing import Any

import httpx

import codeq

worker = codeq.Worker(os.environ.get("CODEQ_URL", "http://127.0.0.1:8080"), concurrency=200)
http = httpx.AsyncClient(timeout=10, follow_redirects=True)


@worker.task("fetch", backoff=codeq.exponential(1, 60))
async def fetch(payload: dict[str, Any]) -> dict[str, Any]:
    # A refused connection raises an httpx error: a failed try, which is repeated after the backoff.
    response = await http.get(payload["url"])
    if response.status_code in (429, 503):
        retry_after = response.headers.get("retry-after", "")
        raise codeq.Retry(
            float(retry_after) if retry_after.isdigit() else None, f"the site answered {response.status_code}"
        )
    if response.is_error:
        raise codeq.Fail(f"the site answered {response.status_code}")  # final: it will not get better
    return {
        "status": response.status_code,
        "bytes": len(response.content),
        "type": response.headers.get("content-type"),
    }


async def main() -> None:
    async with http:  # one pool of connections for all handlers
        await worker.run_async(signals=True)


if __name__ == "__main__":
    asyncio.run(main())
