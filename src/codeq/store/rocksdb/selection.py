"""Which tasks a claim gets: the highest priority over all its queues first, equal priorities in rotation."""

from codeq.domain.queue import QueueKey
from codeq.store.interface import ClaimRequest
from codeq.store.rocksdb.pending import Entry, QueueState, Window
from codeq.store.rocksdb.write_buffer import WriteBuffer

Chosen = tuple[Window, Entry]


def choose(buffer: WriteBuffer, request: ClaimRequest, queues: list[QueueState]) -> list[Chosen]:
    """Take tasks out of their windows. `queues` come in the order of their turn."""
    if any(window.must_read(request.limit) for queue in queues for window in queue.windows.values()):
        # Scans write the journal out. That must not happen between the pops below and the changes that match them:
        # a crash would leave counts on disk that miss tasks which are still pending.
        buffer.write()
    limits = request.limits
    room = {q.key: max(0, limits[q.key] - q.in_progress) for q in queues if q.key in limits} if limits else {}
    chosen: list[Chosen] = []
    for priority in sorted({priority for queue in queues for priority in queue.windows}, reverse=True):
        ready = [window for queue in queues if (window := queue.windows.get(priority))]
        if len(ready) == 1 and not room:
            chosen += [(ready[0], entry) for entry in ready[0].pop(buffer, request.limit - len(chosen))]
        else:
            while ready and len(chosen) < request.limit:
                ready = _one_round(buffer, ready, room, chosen, limit=request.limit)
        if len(chosen) == request.limit:
            break
    return chosen


def _one_round(
    buffer: WriteBuffer, ready: list[Window], room: dict[QueueKey, int], chosen: list[Chosen], *, limit: int
) -> list[Window]:
    """Take one task of each window, and answer those that may give another."""
    going_on = []
    for window in ready:
        key = window.queue.key
        if len(chosen) == limit or room.get(key) == 0:
            continue
        chosen += [(window, entry) for entry in window.pop(buffer, 1)]
        if key in room:
            room[key] -= 1
        if window.count:
            going_on.append(window)
    return going_on
