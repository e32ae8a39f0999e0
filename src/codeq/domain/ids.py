"""Task ids: UUIDs of version 7 that sort by time and carry their shard in the last four digits."""

import re
from collections.abc import Callable, Sequence
from zlib import crc32

_BYTES = [f"{byte:02x}" for byte in range(256)]
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def is_task_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def shard_of(task_id: str) -> int:
    return int(task_id[-4:], 16)


def shard_of_key(tenant: str, idempotency_key: str, shards: int) -> int:
    """Returns the shard that must store a keyed task, so that its key is checked and stored in one atomic step."""
    return crc32(f"{tenant}\0{idempotency_key}".encode()) % shards


class IdGenerator:
    """Generates unique ids, each higher than all ids generated before by this process, even within one millisecond."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._tick = 0  # milliseconds << 12 | counter, the 60 bits that order the ids
        self._last_shard = 0

    def generate(self, now_ms: int, shards: int, shard_numbers: Sequence[int | None]) -> list[str]:
        """Returns one id per entry: for the shard it names, or for the next of `shards` in rotation if it is None."""
        tick = max(self._tick, now_ms << 12)
        noise = self._random_bytes(6).hex()  # once per call: within a process the tick alone makes ids distinct
        tail = f"-8{noise[:3]}-{noise[3:11]}"
        head, head_bits = "", -1
        end, end_number = "", -1
        ids = []
        for wanted in shard_numbers:
            number = wanted
            if number is None:
                number = self._last_shard = (self._last_shard + 1) % shards
            tick += 1
            if tick >> 8 != head_bits:  # numbers become text once for many ids: it is what an id costs
                head_bits = tick >> 8
                head = f"{tick >> 28:08x}-{tick >> 12 & 0xFFFF:04x}-7{head_bits & 0xF:x}"
            if number != end_number:
                end, end_number = f"{tail}{number:04x}", number
            ids.append(head + _BYTES[tick & 0xFF] + end)
        self._tick = tick
        return ids
