"""The processes that share a Redis: how they learn what the others do, and which of them sweeps.

Signals travel by publish/subscribe, which may lose them when a connection breaks. So a new subscription reports its
queue once, a broken one is renewed, and once a second a part of the watched queues is looked at again.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import Any, TypeVar

from codeq.domain.errors import CodeqError, StoreError, StoreMismatch, StoreUnavailable
from codeq.domain.queue import QueueKey, QueuePolicy
from codeq.domain.task import Task
from codeq.store import codec
from codeq.store.interface import Listener
from codeq.store.redis.connection import LuaScript, RedisClient
from codeq.store.redis.faults import FAULTS, passing, passing_faults_ignored
from codeq.store.redis.keys import Channels, ShardKeys, task_id
from codeq.store.redis.policies import PolicyCache, field_of

SWEEPER = LuaScript("lease")
POLICY = LuaScript("policy")
SWEEPER_MS, RENEW_S = 3000, 1.0
"""How long a process that died still counts as the sweeper, and how often a living one says that it is."""
LOOK_AGAIN_S, LOOK_AGAIN_QUEUES = 1.0, 200
SILENCE_S = 10.0
"""After how long without a signal the connection is asked whether it still works, and then given up. A network may drop
it without a word."""
LINGER_S = 5.0
"""How long a subscription outlives its last waiting call: workers that wait again and again do not change it."""
EVERY_COMMAND = "*"
_ID_BYTES = 16
Key = TypeVar("Key")

_log = logging.getLogger("codeq.redis")


class RedisPeers:
    """Implements `store.interface.Peers` for all shards of one process."""

    def __init__(
        self,
        connection: RedisClient,
        listeners: Sequence[Listener],
        *,
        prefix: str,
        shards: int,
        policies: PolicyCache,
        process: str,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._connection = connection
        self._listeners: list[Listener] = []
        self._on_ready: list[Callable[[QueueKey, int], None]] = []
        self._on_moved: list[Callable[[Sequence[Task]], None]] = []
        for listener in listeners:
            self.add_listener(listener)
        self._prefix = prefix
        self._channels = Channels(prefix)
        self._policies = policies
        self._name = process
        self._open_shards = shards
        self._shards = shards
        self._sweeps: dict[int, tuple[bool, float]] = {}
        self._watched: Counter[QueueKey] = Counter()
        self._uses: Counter[str] = Counter()
        """How many calls wait for a signal of each channel."""
        self._unused_s: dict[str, float] = {}
        self._subscriptions: Any = None
        self._is_hearing = True
        self._subscribed: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []
        """What reads signals, and what looks again once a second."""
        self._ended: list[asyncio.Task[None]] = []
        """Those of them that have ended."""
        self._next_look = 0
        self._is_closing = False
        self._refresh = refresh

    # -- what this process does ----------------------------------------------------------------------------------

    @property
    def policies(self) -> dict[QueueKey, QueuePolicy]:
        return self._policies.by_queue

    def add_listener(self, listener: Listener) -> None:
        """Calls the listener from now on; for what happens with every call, only where it does something."""
        kind = type(listener)
        self._listeners.append(listener)
        if kind.ready is not Listener.ready:
            self._on_ready.append(listener.ready)
        if kind.moved is not Listener.moved:
            self._on_moved.append(listener.moved)

    def report(self, ready: Mapping[QueueKey, int], moved: Sequence[Task]) -> None:
        self.start()
        for on_ready in self._on_ready:
            for queue, tasks in ready.items():
                on_ready(queue, tasks)
        if moved:
            for on_moved in self._on_moved:
                on_moved(moved)

    def report_withdrawn(self, task: Task) -> None:
        for listener in self._listeners:
            listener.withdrawn(task)

    @property
    def tells_emptied(self) -> bool:
        """A claim knows of one shard whether it has emptied a queue, and not of several at once."""
        return self._shards == 1

    def report_emptied(self, queue: QueueKey, version: int) -> None:
        if self.tells_emptied:
            for listener in self._listeners:
                listener.emptied(queue, version)

    def report_unreadable(self, key: bytes, reason: str) -> None:
        for listener in self._listeners:
            listener.unreadable(key, reason)

    def notify_ready(self, queue: QueueKey) -> None:
        self._ready(queue)
        self.background(self._connection.call("PUBLISH", self._channels.ready(queue), 1))

    def background(self, call: Coroutine[Any, Any, object]) -> None:
        """Runs the call beside others. A fault is logged."""
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.warning("a call in the background failed: %s", fault)

    async def set_policy(
        self, key: str, queue: QueueKey, policy: QueuePolicy | None, *, replacing: QueuePolicy | None
    ) -> bool:
        raw = self._policies.raw(queue)
        if self._policies.by_queue.get(queue) != replacing:
            return False
        new = codec.encode(policy) if policy is not None else b""
        is_set = await self._connection.run(POLICY, [key], [field_of(queue), raw, new, self._channels.policies])
        if not is_set:
            await self._refresh_policies()
            return False
        self._policies.set(queue, new)
        self._report_policies([queue])
        return True

    async def is_sweeper(self, shard: int) -> bool:
        self.start()
        is_mine, until_s = self._sweeps.get(shard, (False, 0.0))
        if monotonic() >= until_s:
            key = ShardKeys(self._prefix, shard).sweeper
            is_mine = bool(await self._connection.run(SWEEPER, [key], [self._name, SWEEPER_MS]))
            self._sweeps[shard] = (is_mine, monotonic() + RENEW_S)
        return is_mine

    @contextlib.asynccontextmanager
    async def watch(self, queues: Sequence[QueueKey]) -> AsyncIterator[None]:
        self._watched.update(queues)
        try:
            async with self._listening([self._channel(queue) for queue in queues]):
                yield
        finally:
            _uncount(self._watched, queues)

    def watch_moves(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._listening([self._channels.moved])

    @contextlib.asynccontextmanager
    async def _listening(self, channels: Sequence[str]) -> AsyncIterator[None]:
        """Subscribes to the channels, unless that was done, and keeps them for a while after the block."""
        self.start()
        self._uses.update(channels)
        for channel in channels:
            self._unused_s.pop(channel, None)
        try:
            await self._subscribe(channels)
            yield
        finally:
            now_s = monotonic()
            self._unused_s |= dict.fromkeys(_uncount(self._uses, channels), now_s)

    async def close(self) -> None:
        """Ends everything in the background, once every shard is closed."""
        self._open_shards -= 1
        if self._open_shards:
            return
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=5)
        self._is_closing = True
        while running := [loop for loop in self._loops if not loop.done()]:
            for loop in running:
                loop.cancel()  # again if the library has swallowed it, as it may while it connects
            await asyncio.wait(running, timeout=0.2)
        await asyncio.gather(*self._loops, return_exceptions=True)  # `start` has raised what ended one
        if self._subscriptions is not None:  # here, where no further cancellation can interrupt it
            with passing_faults_ignored():
                await self._subscriptions.aclose()
        for shard, (is_mine, _) in self._sweeps.items():
            if is_mine:
                with contextlib.suppress(StoreError):
                    key = ShardKeys(self._prefix, shard).sweeper
                    await self._connection.run(SWEEPER, [key], [self._name, 0])
        await self._connection.close()

    # -- what other processes do ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to listen, at the first call on the event loop. Raises what has ended it since: whoever runs the
        sweepers stops then."""
        if not self._loops:
            loop = asyncio.get_running_loop()
            self._loops = [loop.create_task(self._follow_signals()), loop.create_task(self._look_again())]
            for running in self._loops:
                running.add_done_callback(self._ended.append)
        for running in self._ended:
            if not self._is_closing:
                running.result()

    def _channel(self, queue: QueueKey) -> str:
        is_all = queue.command == EVERY_COMMAND
        return self._channels.ready_of_tenant(queue.tenant) if is_all else self._channels.ready(queue)

    async def _subscribe(self, channels: Sequence[str]) -> None:
        new = [channel for channel in channels if channel not in self._subscribed]
        self._subscribed.update(new)
        if new and self._subscriptions is not None:
            with passing_faults_ignored():  # renewed by `_follow_signals`
                for channel in new:
                    await self._send_subscribe(channel)

    async def _send_subscribe(self, channel: str) -> None:
        if channel.endswith(EVERY_COMMAND):
            await self._subscriptions.psubscribe(channel)
        else:
            await self._subscriptions.subscribe(channel)

    async def _follow_signals(self) -> None:
        """Reads signals, and renews a broken connection."""
        while not self._is_closing:
            try:
                await self._read_signals()
            except (*FAULTS, CodeqError) as fault:
                if not isinstance(fault, CodeqError):
                    passing(fault)  # raises a mistake of our own
                if self._is_hearing:
                    _log.warning("signals of other processes are not heard, connecting again: %s", fault)
                self._is_hearing = False
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _read_signals(self) -> None:
        if self._subscriptions is not None:
            await self._subscriptions.aclose()
        self._subscriptions = await self._connection.subscriptions()
        await self._subscriptions.subscribe(self._channels.policies)
        for channel in list(self._subscribed):
            await self._send_subscribe(channel)
        is_asked = False
        while not self._is_closing:
            message = await self._subscriptions.get_message(timeout=SILENCE_S)
            if message is not None:
                is_asked = False
                self._heard(message)
            elif is_asked:
                raise StoreUnavailable("the connection for signals does not answer")
            else:
                is_asked = True
                await self._subscriptions.subscribe(self._channels.policies)  # again: that is answered, too

    def _heard(self, message: Mapping[str, Any]) -> None:
        channel = message["channel"].decode()
        if not self._is_hearing:
            self._is_hearing = True
            _log.warning("signals of other processes are heard again")
        if message["type"] in ("subscribe", "psubscribe"):
            watched = self._channels.queue_of(channel)
            if channel == self._channels.moved:
                self._tell_to_look_again()  # tasks may have moved before this process listened
            elif watched is not None and watched in self._watched:
                self._ready(watched)  # the same for tasks that became ready
        elif message["type"] not in ("message", "pmessage"):
            return
        elif channel == self._channels.moved:
            self._moved(message["data"])
        elif channel == self._channels.policies:
            self.background(self._refresh_policies())
        else:
            ready = self._channels.queue_of(channel)
            if ready is not None:
                self._ready(ready)

    def _moved(self, data: bytes) -> None:
        ended = [task_id(data[place : place + _ID_BYTES]) for place in range(2, len(data), _ID_BYTES)]
        for listener in self._listeners:
            listener.moved_elsewhere(ended)

    def _ready(self, queue: QueueKey) -> None:
        for listener in self._listeners:
            listener.ready(queue, 1)

    def _tell_to_look_again(self) -> None:
        for listener in self._listeners:
            listener.look_again()

    async def _look_again(self) -> None:
        while not self._is_closing:
            await asyncio.sleep(LOOK_AGAIN_S)
            watched = list(self._watched)
            start = self._next_look if self._next_look < len(watched) else 0
            for queue in islice(watched, start, start + LOOK_AGAIN_QUEUES):
                self._ready(queue)
            self._next_look = start + LOOK_AGAIN_QUEUES
            self._tell_to_look_again()
            try:
                await self._refresh_policies()
                if self._refresh is not None:
                    await self._refresh()
            except StoreMismatch:
                raise  # the data is not what this process can use
            except StoreError as fault:
                _log.debug("looked again in vain: %s", fault)  # those who call hear of it
            await self._end_subscriptions()

    async def _end_subscriptions(self) -> None:
        now_s = monotonic()
        for channel in [channel for channel, since_s in self._unused_s.items() if now_s - since_s > LINGER_S]:
            del self._unused_s[channel]
            self._subscribed.discard(channel)
            if self._subscriptions is not None:
                with passing_faults_ignored():
                    pattern = channel.endswith(EVERY_COMMAND)
                    await (self._subscriptions.punsubscribe if pattern else self._subscriptions.unsubscribe)(channel)

    async def _refresh_policies(self) -> None:
        key = ShardKeys(self._prefix, 0).policies
        version = await self._connection.call("HGET", key, "")
        while (version or b"0") != self._policies.version:
            generation = self._policies.generation
            raw = await self._connection.call("HGETALL", key)
            if generation == self._policies.generation:  # else a later answer came first, on another connection
                stored = raw if isinstance(raw, dict) else dict(zip(raw[::2], raw[1::2], strict=True))
                self._report_policies(self._policies.replace_all(stored))
                return

    def _report_policies(self, queues: Sequence[QueueKey]) -> None:
        for listener in self._listeners:
            listener.policies_changed(queues)


def _uncount(counted: Counter[Key], keys: Sequence[Key]) -> list[Key]:
    """Counts each key once less. Returns those of which none is left, which are deleted."""
    counted.subtract(keys)
    gone = [key for key in keys if counted[key] <= 0]
    for key in gone:
        del counted[key]
    return gone
