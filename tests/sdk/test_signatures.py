"""Functions of unusual shapes as handlers: what they are called with, and what is said of those that cannot be."""

import functools
from dataclasses import dataclass
from typing import Any

import pytest

import codeq
from codeq.errors import InvalidRequest, PayloadInvalid
from codeq.testing import QueueForTests


@dataclass
class Size:
    width: int


def test_a_claimed_job_in_place_of_the_running_one_is_told_apart_when_the_worker_starts(
    codeq_queue: QueueForTests,
) -> None:
    """It would be one more argument, which no payload has."""

    def work(payload: Any, job: codeq.Job) -> None: ...

    worker = codeq.Worker(codeq_queue)
    worker.task("work")(work)
    with pytest.raises(InvalidRequest, match=r"gets a codeq.RunningJob, not a codeq.Job: annotate job as that"):
        codeq_queue.work(worker)


class Sizes:
    @staticmethod
    def double(size: Size, /) -> Size:
        return Size(size.width * 2)


@pytest.mark.parametrize(
    "function", [Sizes.__dict__["double"], functools.cache(Sizes.double), functools.partial(Sizes.double)]
)
def test_what_wraps_a_function_has_its_types(codeq_queue: QueueForTests, function: Any) -> None:
    declared: Any = codeq.Worker(codeq_queue).task("double")(function)
    assert declared.signature.decode(b'{"width": 3}') == ((Size(3),), {})
    with pytest.raises(PayloadInvalid):
        declared.enqueue(5)


def test_an_argument_without_a_name_that_was_left_out_has_its_default(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)

    @worker.task("pair")
    def pair(first: int = 1, second: int = 2, third: int = 3, /) -> list[int]:
        return [first, second, third]

    sent = [codeq_queue.enqueue("pair", payload) for payload in ({"second": 9}, {}, {"third": 7})]
    codeq_queue.work(worker)
    assert [codeq_queue.wait(task, 0) for task in sent] == [[1, 9, 3], [1, 2, 3], [1, 2, 7]]
