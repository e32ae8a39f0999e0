"""The records of tasks. One that cannot be read is reported and treated as missing: it stops no other.

Large payloads and results have keys of their own: a state, a list or an idempotency key is read without the megabyte
beside it.
"""

from collections.abc import Sequence

from codeq.domain.ids import is_task_id
from codeq.domain.limits import INLINE_BYTES_MAX, WRITE_BYTES_MAX, WRITE_KEYS_MAX
from codeq.domain.requests import Record
from codeq.domain.task import Body, Task
from codeq.store import codec
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.leases import Leases
from codeq.store.rocksdb.write_buffer import WriteBuffer

_ID_WITHIN_BYTES = 48
"""A created record begins with the task's id, after a few bytes of MessagePack."""


class Records:
    def __init__(self, buffer: WriteBuffer, leases: Leases) -> None:
        self._buffer = buffer
        self._leases = leases
        self._large_bytes = 0

    def put_body(self, task: Task, data: bytes, body: Body) -> None:
        """Stores the new task, encoded as `data`, with its body."""
        if task.payload_bytes > INLINE_BYTES_MAX:
            self._large_bytes += task.payload_bytes
            self._buffer.put(keys.large_payload(task.tenant, task.id), body.payload)
            body = _with_payload(body, b"")
        self._buffer.put(keys.body(task.tenant, task.id), codec.created_record(data, body))

    def put_current(self, task: Task, data: bytes, result: bytes | None) -> None:
        """Stores the task as its last move left it, with its result."""
        if result is not None and len(result) > INLINE_BYTES_MAX:
            self._large_bytes += len(result)
            self._buffer.put(keys.large_result(task.tenant, task.id), result)
            record = codec.current_record_apart(data, len(result))
        else:
            record = codec.current_record(data, result)
        self._buffer.put(keys.current_record(task.tenant, task.id), record)

    def delete(self, task: Task) -> None:
        """Deletes everything that is stored by the task's id, and its idempotency key."""
        tenant, task_id, buffer = task.tenant, task.id, self._buffer
        wanted = [keys.body(tenant, task_id), keys.current_record(tenant, task_id)]
        created, current = buffer.get_many(wanted)
        body = self._decoded_body(wanted[0], created)
        if body is not None and body.idempotency_key is not None:
            buffer.delete(keys.idempotency(tenant, body.idempotency_key))
        if task.payload_bytes > INLINE_BYTES_MAX:
            buffer.delete(keys.large_payload(tenant, task_id))
        if current is not None and codec.decode_current(current).result_bytes:
            buffer.delete(keys.large_result(tenant, task_id))
        for key in wanted:
            buffer.delete(key)

    def write_if_large(self) -> None:
        """Writes the write buffer if it has much: to write all of a burst at once would hold the event loop."""
        if self._large_bytes > WRITE_BYTES_MAX or len(self._buffer.recent) > WRITE_KEYS_MAX:
            self._large_bytes = 0
            self._buffer.write()

    def task(self, tenant: str, task_id: str) -> Task | None:
        """Returns the task as its last move left it. For a task of another tenant it reads what it reads for an unknown
        id, so that the time tells nothing."""
        held = self._leases.held.get(task_id)
        if held is not None and held.tenant == tenant:
            return held
        if not is_task_id(task_id):
            return None
        key = keys.current_record(tenant, task_id)
        try:
            current = self._buffer.get(key)
            if current is not None:
                data = codec.decode_current(current).task
            else:
                key = keys.body(tenant, task_id)
                created = self._buffer.get(key)
                if created is None:
                    return None
                data = codec.decode_created(created).task
            task = codec.decode_task(data)
            if task.id == task_id and task.tenant == tenant:
                return task
            reason = "this is the record of another task"
        except codec.UNREADABLE as fault:
            reason = str(fault)
        self._buffer.report(key, reason)
        return None

    def is_damaged(self, task: Task) -> bool:
        """Returns whether the task has a record that cannot be read: its entry in an index is all that is left."""
        if self.task(task.tenant, task.id) is not None:
            return False
        return self._buffer.get(keys.current_record(task.tenant, task.id)) is not None

    def record(self, tenant: str, task_id: str, *, results: bool) -> Record | None:
        """Returns the task with its body and, if asked for, its result."""
        task = self.task(tenant, task_id)
        if task is None:
            return None
        [body] = self.bodies([task])
        if body is None:
            return None
        try:
            return Record(task, body, self._result(task) if results else None)
        except codec.UNREADABLE as fault:
            self._buffer.report(keys.current_record(tenant, task_id), str(fault))
            return None

    def bodies(self, tasks: Sequence[Task]) -> list[Body | None]:
        found = [keys.body(task.tenant, task.id) for task in tasks]
        read = self._buffer.get_many(found)
        return [self._body(task, key, created) for task, key, created in zip(tasks, found, read, strict=True)]

    def still_leased(self, claimed: Task) -> Task | None:
        """Returns the task of a stored claim, with the lease that a heartbeat has extended; None if it has moved on."""
        wanted = [keys.current_record(claimed.tenant, claimed.id), keys.body(claimed.tenant, claimed.id)]
        current, created = self._buffer.get_many(wanted)
        if created is None:
            return None  # purged since
        try:
            task = codec.decode_task(codec.decode_current(current).task) if current is not None else claimed
        except codec.UNREADABLE as fault:
            self._buffer.report(wanted[0], str(fault))
            return None
        if task.version > claimed.version:
            return None  # moved since
        return task if task.version == claimed.version else claimed

    def _result(self, task: Task) -> bytes | None:
        data = self._buffer.get(keys.current_record(task.tenant, task.id))
        if data is None:
            return None
        current = codec.decode_current(data)
        if not current.result_bytes:
            return current.result
        key = keys.large_result(task.tenant, task.id)
        result = self._buffer.get(key)
        if result is None or len(result) != current.result_bytes or not _is_text(result):
            self._buffer.report(key, "this is not the result of the task")
            return None
        return result

    def _body(self, task: Task, key: bytes, created: bytes | None) -> Body | None:
        body = self._decoded_body(key, created)
        if body is None or created is None:
            return None
        if task.id.encode() not in created[:_ID_WITHIN_BYTES]:
            self._buffer.report(key, "this is the body of another task")
            return None
        if not body.payload and task.payload_bytes:
            key = keys.large_payload(task.tenant, task.id)
            body = _with_payload(body, self._buffer.get(key) or b"")
        if len(body.payload) != task.payload_bytes or not _is_text(body.payload):
            self._buffer.report(key, "this is not the payload of the task")
            return None
        return body

    def _decoded_body(self, key: bytes, created: bytes | None) -> Body | None:
        try:
            if created is not None:
                return codec.decode_body(codec.decode_created(created).body)
            reason = "the task has no body"
        except codec.UNREADABLE as fault:
            reason = str(fault)
        self._buffer.report(key, reason)
        return None


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _with_payload(body: Body, payload: bytes) -> Body:
    return Body(payload, body.idempotency_key, body.webhook, body.trace_parent, body.trace_state)
