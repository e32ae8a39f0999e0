"""Any JSON value travels unharmed: from the producer to the worker, and from the worker back."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sdk.clients import KINDS, WORKER, Clients

from codeq import new_tasks
from codeq.errors import InvalidRequest
from codeq.sdk.blocking import BlockingVerbs

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=15,
)


@pytest.fixture(scope="module", params=KINDS)
def kept(request: pytest.FixtureRequest, clients: Clients) -> BlockingVerbs:
    """One queue for all the examples of a test."""
    return clients.queue(request.param)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=JSON, result=JSON)
def test_a_payload_and_a_result_arrive_as_they_were_sent(kept: BlockingVerbs, payload: Any, result: Any) -> None:
    task = kept.enqueue("work", payload)
    [job] = kept.claim("work", worker=WORKER)
    assert same(job.payload, payload)
    kept.complete(job, result)
    assert same(kept.wait(task.id), result)
    found = kept.get(task.id)
    assert same(found.payload, payload)
    assert same(found.result, result)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads=st.lists(JSON, min_size=1, max_size=10))
def test_many_payloads_arrive_as_they_were_sent(kept: BlockingVerbs, payloads: list[Any]) -> None:
    kept.enqueue_many(new_tasks("many", payloads))
    jobs = kept.claim("many", worker=WORKER, limit=1000)
    assert same([job.payload for job in jobs], payloads)
    assert kept.complete_many(jobs, payloads) == [None] * len(jobs)
    assert same([kept.wait(job.id) for job in jobs], payloads)


def same(found: Any, sent: Any) -> bool:
    """Equal, and of the same kind: 1 is not True, nor 1.0."""
    if isinstance(sent, list):
        return isinstance(found, list) and len(found) == len(sent) and all(map(same, found, sent))
    if isinstance(sent, dict):
        return isinstance(found, dict) and found.keys() == sent.keys() and all(same(found[k], sent[k]) for k in sent)
    return type(found) is type(sent) and bool(found == sent)


def test_a_value_that_json_cannot_say_is_turned_into_one_that_it_can(kept: BlockingVerbs) -> None:
    kept.enqueue("odd", {1: (2, 3), "none": None})
    [job] = kept.claim("odd", worker=WORKER)
    assert job.payload == {"1": [2, 3], "none": None}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_cannot_say_is_refused_rather_than_stored_as_null(
    kept: BlockingVerbs, number: float
) -> None:
    for payload in (number, [None, {"a": (1, number)}]):
        with pytest.raises(InvalidRequest, match="NaN"):
            kept.enqueue("nan", payload)
    assert "nan" not in kept.queues()
