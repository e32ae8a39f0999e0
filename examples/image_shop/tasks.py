"""What the shop's tasks are called, take and return. Producers import this, and need nothing that the workers need."""

from dataclasses import dataclass

from pydantic import BaseModel, Field

import codeq


@dataclass
class Thumbnail:
    image: str
    width: int
    made_by: int
    """The process that made it."""


class Order(BaseModel):
    customer: str
    images: list[str] = Field(min_length=1, max_length=100)


class Bill(BaseModel):
    customer: str
    cents: int


@codeq.task("resize", process=True, max_attempts=3, backoff=codeq.fixed(0.2), lease=2)
def resize(image: str, width: int = 640) -> Thumbnail:
    raise NotImplementedError("the worker has the code: image_shop/worker.py")


@codeq.task("fetch", retry_on={TimeoutError: codeq.fixed(0.1)}, fail_on=FileNotFoundError)
async def fetch(url: str) -> int:
    raise NotImplementedError


@codeq.task("bill", fail_on=ValueError, lease=2)
def bill(order: Order) -> Bill:
    raise NotImplementedError
