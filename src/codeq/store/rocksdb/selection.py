"""Which tasks a claim gets: the highest priority over all its queues first, equal priorities in rotation."""

from codeq.domain.queue import QueueKey
from codeq.store.interface import ClaimRequest
from codeq.store.rocksdb.pending import Entry, QueueState, Window
from codeq.store.rocksdb.write_buffer import WriteBuffer

Selected = tuple[Window, Entry]


def select(buffer: WriteBuffer, request: ClaimRequest, queues: list[QueueState]) -> list[Selected]:
    """Removes the claim's tasks from their windows. `queues` are in order of rotation."""
    if any(window.must_read(request.limit) for queue in queues for window in queue.windows.values()):
        # Scans write the write buffer. That must not happen between the pops below and the changes that match them:
        # a crash would leave counts on disk that miss tasks which are still pending.
        buffer.write()
    limits = request.limits
    room = {q.key: max(0, limits[q.key] - q.in_progress) for q in queues if q.key in limits} if limits else {}
    selected: list[Selected] = []
    for priority in sorted({priority for queue in queues for priority in queue.windows}, reverse=True):
        ready = [window for queue in queues if (window := queue.windows.get(priority))]
        if len(ready) == 1 and not room:
            selected += [(ready[0], entry) for entry in ready[0].pop(buffer, request.limit - len(selected))]
        else:
            while ready and len(selected) < request.limit:
                ready = _take_round(buffer, ready, room, selected, limit=request.limit)
        if len(selected) == request.limit:
            break
    return selected


def _take_round(
    buffer: WriteBuffer, ready: list[Window], room: dict[QueueKey, int], selected: list[Selected], *, limit: int
) -> list[Window]:
    """Removes one task from each window, and returns the windows that may have another."""
    remaining = []
    for window in ready:
        key = window.queue.key
        if len(selected) == limit or room.get(key) == 0:
            continue
        selected += [(window, entry) for entry in window.pop(buffer, 1)]
        if key in room:
            room[key] -= 1
        if window.count:
            remaining.append(window)
    return remaining
