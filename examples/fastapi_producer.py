"""A FastAPI application that answers at once and leaves the slow work to codeQ.

make serve                                                                     # one terminal
CODEQ_TOKEN=dev-token .venv/bin/python examples/cpu_worker.py                  # another: does the work
CODEQ_TOKEN=dev-token .venv/bin/uvicorn --app-dir examples fastapi_producer:app --port 8000

curl -s localhost:8000/primes -H 'Content-Type: application/json' -d '{"below": 100000}'
curl -s 'localhost:8000/primes/<id>?wait=10'
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field

import codeq


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # One client for the whole application: it keeps its connections. Server and token come from the environment
    # (CODEQ_URL, CODEQ_TOKEN).
    async with codeq.AsyncClient() as queue:
        app.state.queue = queue
        yield


app = FastAPI(title="Primes while you wait", lifespan=lifespan)


class Wish(BaseModel):
    below: int = Field(ge=2, le=50_000_000)


@app.post("/primes", status_code=202)
async def order(
    wish: Wish, request: Request, idempotency_key: Annotated[str | None, Header()] = None
) -> dict[str, str]:
    """Take the order. A caller that sends `Idempotency-Key` may send it again without ordering twice."""
    queue: codeq.AsyncClient = request.app.state.queue
    task = await queue.enqueue("count_primes", {"below": wish.below}, idempotency_key=idempotency_key)
    return {"id": task.id}


@app.get("/primes/{task_id}")
async def fetch(
    task_id: str, request: Request, response: Response, wait: Annotated[float, Query(ge=0, le=30)] = 0
) -> dict[str, Any]:
    """The result, waiting for it up to `wait` seconds; 202 with the progress while there is none."""
    queue: codeq.AsyncClient = request.app.state.queue
    try:
        kept = await queue.get(task_id, wait=wait)
    except codeq.errors.NotFound:
        raise HTTPException(404, "no such order") from None
    task = kept.task
    if task.status is codeq.Status.COMPLETED:
        return {"status": "done", **kept.result}
    if task.status.is_final:
        raise HTTPException(500, f"the order ended as {task.status}: {task.error}")
    response.status_code = 202
    return {"status": task.status, "progress": task.progress}
