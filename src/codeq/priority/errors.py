"""What the priority queue refuses: an id that is none, and a worker that does not hold the lock.

InvalidRequest
└── InvalidTaskId   invalid-task-id   not a task id: empty, too long, or with characters that ids do not have
NotOwner
└── LockLost        lock-lost         the lock expired, or another worker holds it
"""

from codeq.domain.errors import InvalidRequest, NotOwner


class InvalidTaskId(InvalidRequest):
    code = "invalid-task-id"


class LockLost(NotOwner):
    """Stop working on the task and discard what was done: it is somebody else's, or ready for anybody."""

    code = "lock-lost"
