"""Every error that codeQ raises on purpose, each with the code that HTTP, SDK and CLI show.

CodeqError
├── InvalidRequest           invalid               a value breaks a limit or a pattern
│   ├── IdempotencyMismatch  idempotency-mismatch  the key was used before, for another task
│   ├── WebhookRefused       webhook-refused       the webhook leads to a host that is not public
│   ├── ArtifactTooLarge     artifact-too-large    an artifact, or all of a task's, over their limit
│   └── DigestMismatch       digest-mismatch       what arrived is not what was sent
├── NotFound                 not-found             no such task for this tenant
├── QuotaExceeded            quota-exceeded        the tenant has as much as it may have
├── Refused                                        the task or policy is not in a state that allows the change
│   ├── NotOwner             not-owner             another worker, or an older lease token
│   ├── NotInProgress        not-in-progress       no lease is held on the task
│   │   └── Cancelled        cancelled             because the task was cancelled
│   ├── NotDead              not-dead              only dead-lettered tasks can be replayed
│   ├── AlreadyFinal         already-final         the task has ended and cannot be cancelled
│   ├── NotFinal             not-final             the task has not ended and cannot be purged
│   ├── StaleTask            stale-task            the task kept changing under this call
│   ├── UploadOffset         upload-offset         an upload continues elsewhere than where its last part ended
│   └── PolicyChanged        policy-changed        the policy has another version than the call names
└── StoreError               store                 the directory cannot be used as asked
    ├── StoreBusy            busy                  too many calls wait for the disk
    ├── StoreFull            full                  the disk is nearly full; new tasks are refused
    ├── StoreUnavailable     store-unavailable     the store does not answer; the outcome of the call is unknown
    ├── StoreFailed          failed                a write or fsync failed; reopen the store
    ├── StoreClosed          closed                the store was closed
    ├── StoreLocked          locked                another process has the directory open
    ├── StoreCorrupt         corrupt               the files are damaged or shorter than acknowledged
    └── StoreMismatch        mismatch              another format version or number of shards
"""


class CodeqError(Exception):
    """The root of the tree. `code` identifies the error over HTTP, in the SDK and in the CLI."""

    code = "error"


class InvalidRequest(CodeqError):
    code = "invalid"


class IdempotencyMismatch(InvalidRequest):
    code = "idempotency-mismatch"


class WebhookRefused(InvalidRequest):
    code = "webhook-refused"


class ArtifactTooLarge(InvalidRequest):
    code = "artifact-too-large"


class DigestMismatch(InvalidRequest):
    code = "digest-mismatch"


class NotFound(CodeqError):
    code = "not-found"


class QuotaExceeded(CodeqError):
    code = "quota-exceeded"

    def __init__(self, message: str, *, limit: str = "", retry_after_s: int = 0) -> None:
        """`limit` names what is limited. `retry_after_s` is 0 where waiting does not help."""
        super().__init__(message)
        self.limit = limit
        self.retry_after_s = retry_after_s


class Refused(CodeqError):
    code = "refused"


class NotOwner(Refused):
    code = "not-owner"


class NotInProgress(Refused):
    code = "not-in-progress"


class Cancelled(NotInProgress):
    code = "cancelled"


class NotDead(Refused):
    code = "not-dead"


class AlreadyFinal(Refused):
    code = "already-final"


class NotFinal(Refused):
    code = "not-final"


class StaleTask(Refused):
    code = "stale-task"


class UploadOffset(Refused):
    code = "upload-offset"

    def __init__(self, message: str, *, offset: int = 0) -> None:
        """`offset` is where the upload continues: how many of its bytes are stored."""
        super().__init__(message)
        self.offset = offset


class PolicyChanged(Refused):
    code = "policy-changed"


class StoreError(CodeqError):
    code = "store"


class StoreBusy(StoreError):
    code = "busy"


class StoreFull(StoreError):
    code = "full"


class StoreUnavailable(StoreError):
    """A passing fault of a store on other machines: no connection, no answer in time, a failover, too few replicas.

    Whether the call took effect is unknown. It can be repeated with the same idempotency key, request id or token.
    """

    code = "store-unavailable"


class StoreFailed(StoreError):
    code = "failed"


class StoreClosed(StoreError):
    code = "closed"


class StoreLocked(StoreError):
    code = "locked"


class StoreCorrupt(StoreError):
    code = "corrupt"


class StoreMismatch(StoreError):
    code = "mismatch"
