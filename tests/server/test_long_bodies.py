"""Long bodies are decoded in turn: hundreds may arrive in the same iteration of the event loop."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.server.in_process_server import InProcessServer

from codeq.server.request import SHORT_BYTES, Parser
from codeq.usecases.turns import Turns
from codeq.wire import paths

IDS = [f"{place:08x}-0000-7000-8000-000000000000" for place in range(1000)]
CALLS = {
    paths.LEASES_WATCH: {"leases": [{"taskId": task_id, "leaseToken": 1} for task_id in IDS[:256]]},
    paths.HEARTBEATS_BATCH: {"heartbeats": [{"taskId": task_id} for task_id in IDS]},
    paths.TASKS: {"command": "work", "payload": IDS},
    paths.RESULT.format(id=IDS[0]): {"status": "COMPLETED", "result": IDS},
}


@pytest.mark.parametrize("path", CALLS)
def test_a_long_body_is_decoded_when_its_turn_has_come(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(13.16)"""
    body = msgspec.json.encode(CALLS[path])
    assert len(body) > SHORT_BYTES
    asyncio.run(check_order(tmp_path, path, body, monkeypatch))


async def check_order(folder: Path, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    wait, decode = Turns.wait, Parser.decode

    async def noted_wait(turns: Turns, tenant: str) -> float:
        until_s = await wait(turns, tenant)
        steps.append("turn")
        return until_s

    def noted_decode(parser: Parser, message: Any, *, packed: bool) -> Any:
        steps.append("decode")
        return decode(parser, message, packed=packed)

    server = InProcessServer(folder)
    async with server.running():
        [caller] = await server.callers("acme")
        monkeypatch.setattr(Turns, "wait", noted_wait)
        monkeypatch.setattr(Parser, "decode", noted_decode)
        caller.send("POST", path, body)
        assert (await caller.answer()).status in (200, 202, 404)
    assert steps[:2] == ["turn", "decode"]
