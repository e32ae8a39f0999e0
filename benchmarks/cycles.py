"""How many full cycles (enqueue, claim, complete) the engine does in a second, and how near that is to bare RocksDB.

Engine and raw take turns, so that what else the machine does hits both; the ratio is the median over the turns.
"""

import asyncio
import gc
import itertools
import random
import shutil
import statistics
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from benchmarks.tape import Tape, key_per_index, recording

import codeq
from codeq import AsyncQueue, NewTask

COMMAND = "bench"
CALLERS = 8
RECORDED_BYTES_MAX = 120 << 20
"""What a run may write: the raw run keeps all of it in memory."""
_BYTES_BESIDE_PAYLOAD = 1200
_REPETITIONS = 3


class Setting(msgspec.Struct, frozen=True):
    durability: str
    payload_bytes: int
    batch: int
    callers: int


class Row(msgspec.Struct, frozen=True):
    """One setting's figures. `ratio` is engine over raw: 1 would mean that the engine itself costs nothing.

    `draft_ratio` is engine over bare RocksDB writing one key per task and index, which is what the engine would be
    measured against if it wrote fifteen keys per cycle as a first draft did.
    """

    setting: Setting
    cycles: int
    engine_per_s: float
    raw_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    draft_per_s: float
    draft_ratio: float
    operations_per_cycle: float
    bytes_per_cycle: float
    writes: int
    flushes: int
    calls_per_flush: float | None


def settings(*, quick: bool) -> list[Setting]:
    batches = [1, 128] if quick else [1, 16, 128]
    payloads = [200] if quick else [200, 10_000]
    every = itertools.product(["process", "fsync"], payloads, batches, [1, CALLERS])
    return [Setting(*values) for values in every]


def measure(setting: Setting, directory: Path, *, seconds: float) -> Row:
    """Warm up, record, then engine and raw in turns over the same number of cycles, each in a new directory."""
    homes = _homes(directory)
    rounds = _rounds(setting, _warm_up(setting, next(homes), seconds=seconds / 3), seconds)
    tape = _record(setting, next(homes), rounds)
    draft = key_per_index(
        payloads(setting.payload_bytes, 1)[0],
        batch=setting.batch,
        rounds=rounds * setting.callers,
        flushed=setting.durability == "fsync",
    )
    gc.collect()
    gc.freeze()  # the tape's million objects must not slow down the collections that the engine's own objects cause
    try:
        turns = [
            (
                _run(setting, next(homes), rounds),
                _timed_replay(tape, next(homes) / "rocksdb"),
                _timed_replay(draft, next(homes) / "rocksdb"),
            )
            for _ in range(_REPETITIONS)
        ]
    finally:
        gc.unfreeze()
    return _row(setting, rounds, tape, turns)


def payloads(payload_bytes: int, number: int) -> list[bytes]:
    """JSON strings of exactly this size, all different and hardly compressible."""
    dice = random.Random(payload_bytes)
    letters = string.ascii_letters + string.digits
    return [f'"{"".join(dice.choices(letters, k=payload_bytes - 2))}"'.encode() for _ in range(number)]


def _row(setting: Setting, rounds: int, tape: Tape, turns: list[tuple[float, float, float]]) -> Row:
    cycles = rounds * setting.batch * setting.callers
    ratios = sorted(raw_s / engine_s for engine_s, raw_s, _ in turns)
    return Row(
        setting=setting,
        cycles=cycles,
        engine_per_s=cycles / statistics.median(engine_s for engine_s, _, _ in turns),
        raw_per_s=cycles / statistics.median(raw_s for _, raw_s, _ in turns),
        ratio=statistics.median(ratios),
        ratio_low=ratios[0],
        ratio_high=ratios[-1],
        draft_per_s=cycles / statistics.median(draft_s for _, _, draft_s in turns),
        draft_ratio=statistics.median(draft_s / engine_s for engine_s, _, draft_s in turns),
        operations_per_cycle=tape.operations / cycles,
        bytes_per_cycle=tape.bytes / cycles,
        writes=len(tape.batches),
        flushes=tape.flushes,
        calls_per_flush=3 * rounds * setting.callers / tape.flushes if tape.flushes else None,
    )


def _warm_up(setting: Setting, home: Path, *, seconds: float) -> float:
    """Cycles per second of a short run."""
    deadline_s = time.perf_counter() + seconds
    done = 0

    def going_on() -> bool:
        nonlocal done
        done += 1
        return time.perf_counter() < deadline_s

    elapsed_s = asyncio.run(_drive(setting, home, going_on))
    return done * setting.batch / elapsed_s


def _rounds(setting: Setting, cycles_per_s: float, seconds: float) -> int:
    """How often each caller goes round, to take about `seconds` and write no more than may be recorded."""
    cycles_max = RECORDED_BYTES_MAX / (setting.payload_bytes + _BYTES_BESIDE_PAYLOAD)
    return max(2, round(min(cycles_per_s * seconds, cycles_max) / (setting.batch * setting.callers)))


def _record(setting: Setting, home: Path, rounds: int) -> Tape:
    with recording(flushes=setting.durability == "fsync") as tape:
        _run(setting, home, rounds)
    return tape


def _run(setting: Setting, home: Path, rounds: int) -> float:
    gc.collect()
    turns = iter(range(rounds * setting.callers))
    return asyncio.run(_drive(setting, home, lambda: next(turns, None) is not None))


def _timed_replay(tape: Tape, path: Path) -> float:
    path.parent.mkdir()
    gc.collect()
    try:
        return tape.replay(path)
    finally:
        shutil.rmtree(path.parent)


async def _drive(setting: Setting, home: Path, going_on: Callable[[], bool]) -> float:
    """Let every caller go round until told to stop; answers the seconds between opening and closing."""
    made = payloads(setting.payload_bytes, setting.batch)
    tasks = [NewTask(command=COMMAND, payload=payload) for payload in made]
    async with await codeq.open_async(home, durability=setting.durability) as queue:
        started_s = time.perf_counter()
        await asyncio.gather(*(go_round(queue, tasks, going_on) for _ in range(setting.callers)))
        elapsed_s = time.perf_counter() - started_s
    shutil.rmtree(home)
    return elapsed_s


async def go_round(queue: AsyncQueue, tasks: list[NewTask], going_on: Callable[[], bool]) -> None:
    while going_on():
        await queue.enqueue_many(tasks)
        jobs = await queue.claim(COMMAND, limit=len(tasks))
        ended = await queue.complete_many(jobs)
        if len(ended) != len(tasks):
            raise RuntimeError(f"a cycle of {len(tasks)} tasks ended {len(ended)} of them")


def _homes(directory: Path) -> Iterator[Path]:
    return (directory / f"cycles-{number}" for number in itertools.count())
