"""Calls to Redis, as far as they need no server."""

import asyncio

import pytest

from codeq.store.redis.connection import RedisClient, parse_url


async def _answer_in_spite_of_a_cancellation() -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "answered"
    raise AssertionError("nobody cancelled the call")


def test_a_cancellation_that_the_library_forgets_still_ends_the_caller() -> None:
    async def scenario() -> None:
        client = RedisClient(parse_url("redis://127.0.0.1:1"))
        caller = asyncio.create_task(client.guarded(_answer_in_spite_of_a_cancellation()))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(scenario())


def test_a_call_after_a_cancellation_that_was_handled_is_answered() -> None:
    async def scenario() -> None:
        client = RedisClient(parse_url("redis://127.0.0.1:1"))

        async def clean_up_when_cancelled() -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return await client.guarded(asyncio.sleep(0, "cleaned up"))
            raise AssertionError("nobody cancelled the call")

        caller = asyncio.create_task(clean_up_when_cancelled())
        await asyncio.sleep(0)
        caller.cancel()
        assert await caller == "cleaned up"

    asyncio.run(scenario())
