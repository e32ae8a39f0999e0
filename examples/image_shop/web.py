"""The shop's web application: it takes orders and answers at once; the work is done elsewhere.

make serve                                                                     # one terminal
CODEQ_TOKEN=dev-token .venv/bin/python -m examples.image_shop.worker           # another: does the work
CODEQ_TOKEN=dev-token .venv/bin/uvicorn examples.image_shop.web:app --port 8000

curl -s localhost:8000/orders -H 'Content-Type: application/json' -d '{"customer": "ada", "images": ["cat.png"]}'
curl -s 'localhost:8000/thumbnails/<id>?wait=10'
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

from examples.image_shop.tasks import Order, bill, resize
from fastapi import FastAPI, HTTPException, Query, Request

import codeq


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with codeq.AsyncClient() as queue:  # CODEQ_URL and CODEQ_TOKEN
        app.state.queue = queue
        yield


app = FastAPI(title="Image shop", lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(wanted: Order, request: Request) -> dict[str, Any]:
    queue: codeq.AsyncClient = request.app.state.queue
    thumbnails = await queue.enqueue_many([resize.new_task(image) for image in wanted.images])
    billed = await queue.enqueue(bill, wanted)
    return {"thumbnails": [task.id for task in thumbnails], "bill": billed.id}


@app.get("/thumbnails/{task_id}")
async def thumbnail(task_id: str, request: Request, wait: Annotated[float, Query(ge=0, le=30)] = 0) -> dict[str, Any]:
    queue: codeq.AsyncClient = request.app.state.queue
    try:
        made = await queue.wait(task_id, wait, of=resize)
    except codeq.errors.NotFound:
        raise HTTPException(404, "no such thumbnail") from None
    except codeq.WaitTimeout:
        return {"status": "waiting", "progress": (await queue.get(task_id)).task.progress}
    except codeq.TaskFailed as fault:
        raise HTTPException(410, str(fault)) from None
    return {"status": "done", **asdict(made)}


@app.delete("/thumbnails/{task_id}")
async def forget(task_id: str, request: Request) -> dict[str, str]:
    """Cancels the work; a worker that is at it is interrupted within a second."""
    queue: codeq.AsyncClient = request.app.state.queue
    try:
        return {"status": (await queue.cancel(task_id)).status}
    except codeq.errors.Refused as refusal:
        raise HTTPException(409, str(refusal)) from None
