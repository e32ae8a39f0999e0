"""A server that is not there: calls say so while they wait for it, and a batcher waits for it once."""

import asyncio
import socket

import pytest

import codeq
from codeq.errors import Unreachable
from codeq.sdk import http_client


@pytest.fixture
def nowhere() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "codeq.client"]


def test_a_call_that_waits_for_its_server_says_so_once(
    nowhere: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "TELL_AFTER_S", 0.1)
    with codeq.Client(nowhere, "token", retry_for=1) as client, pytest.raises(Unreachable):
        client.enqueue("work")
    [line] = said(caplog)
    assert line.startswith(f"no answer from {nowhere.removeprefix('http://')} so far, trying for another")


def test_a_call_that_is_answered_soon_says_nothing(nowhere: str, caplog: pytest.LogCaptureFixture) -> None:
    with codeq.Client(nowhere, "token", retry_for=0.3) as client, pytest.raises(Unreachable):
        client.enqueue("work")
    assert said(caplog) == []


def test_a_batcher_waits_for_a_dead_server_once_and_not_once_per_batch(
    nowhere: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "TELL_AFTER_S", 0.1)
    with codeq.Client(nowhere, "token", retry_for=1) as client:
        batcher = client.batcher(size=1)
        tickets = [batcher.enqueue("work", number) for number in range(8)]
        batcher.flush()
        for ticket in tickets:
            with pytest.raises(Unreachable):
                ticket.task()
        batcher.close()
    assert len(said(caplog)) == 1  # the other batches were tried once


def test_an_async_batcher_does_so_too(
    nowhere: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "TELL_AFTER_S", 0.1)

    async def produce() -> None:
        async with codeq.AsyncClient(nowhere, "token", retry_for=1) as client:
            batcher = client.batcher(size=1)
            tickets = [await batcher.enqueue("work", number) for number in range(6)]
            await batcher.flush()
            for ticket in tickets:
                with pytest.raises(Unreachable):
                    await ticket
            await batcher.close()

    asyncio.run(produce())
    assert len(said(caplog)) == 1
