"""Which hard limits codeQ has, each with the reason for its number."""

PAYLOAD_BYTES_MAX = 1 << 20
"""A queue moves references, not files; at one megabyte a batch of claims fits in memory."""

RESULT_BYTES_MAX = 1 << 20
"""As for payloads: larger outcomes belong in artifacts."""

BATCH_TASKS_MAX = 1000
"""A larger batch gains nothing: a thousand tasks already share the fsync."""

BATCH_BYTES_MAX = 32 << 20
"""Payload bytes in one batch or one response; bounds what a single call may hold in memory."""

INLINE_BYTES_MAX = 4096
"""Payloads and results up to this length are stored inside their task's record: one key less. Longer ones would be read
whenever a state is."""

WRITE_BYTES_MAX = 2 << 20
"""Bytes of large payloads and results that are written to RocksDB at once: about five milliseconds."""

WRITE_KEYS_MAX = 2048
"""Keys that are written to RocksDB at once: about three milliseconds."""

CLAIM_BYTES_MAX = 8 << 20
"""Payload bytes after which a claim takes no further task: read in about twenty milliseconds, and bounds the answer."""

PAGE_BYTES_MAX = 8 << 20
"""Payload bytes in one page of tasks or events: copying a longer answer would hold the event loop."""

CLAIM_COMMANDS_MAX = 64
"""A claim reads the head of each command's queue; more commands than this are better served by several workers."""

NAME_PATTERN = r"(?!\.\.?$)[A-Za-z0-9_.\-]{1,64}"
"""Commands: safe in keys, URLs, metric labels and file names without escaping, so not `.` nor `..`."""

TENANT_PATTERN = r"(?!\.\.?$)[!-~](?:[ -~]{0,253}[!-~])?"
"""Tenants are what issuers put into `sub`, such as `auth0|123` or `spiffe://a/b`: up to 255 characters of printable
ASCII, as in OpenID Connect, without spaces at the ends. Where some of them have a meaning, they are escaped."""

WORKER_CHARS_MAX = 256
"""A worker is named by its token's subject; longer subjects are not names."""

IDEMPOTENCY_KEY_CHARS_MAX = 255
"""Fits a URL or three UUIDs; the caller should hash longer keys."""

REQUEST_ID_CHARS_MAX = 64
"""Fits a UUID or the hash of anything longer. It is held in memory with the leases of its claim."""

COMPARE_BYTES_MAX = 128 << 10
"""Payloads up to this size are compared as JSON values under a repeated idempotency key, longer ones byte for byte: the
comparison holds the event loop, for a few milliseconds at this size."""

ERROR_CHARS_MAX = 2000
"""The head of a stack trace. It is copied into every later event of the task, so it must stay small."""

PROGRESS_CHARS_MAX = 200
"""One line on a screen; it is held in memory with the lease."""

WEBHOOK_CHARS_MAX = 2000
"""The longest URL that browsers and proxies accept."""

TRACE_CHARS_MAX = 512
"""The limit that W3C Trace Context sets for `tracestate`."""

TRACE_LINKS_MAX = 32
"""Traces that one span links to; OpenTelemetry keeps 128."""

TRACE_LINK_BYTES_MAX = 1024 * 1024
"""Payloads that are read to find them, since a task's trace is stored in its body. About a millisecond."""

PRIORITY_MIN, PRIORITY_MAX = 0, 9
"""One decimal digit, 9 first: a person can distinguish ten tiers, and one claim can check them all."""

ATTEMPTS_MIN, ATTEMPTS_DEFAULT, ATTEMPTS_MAX = 1, 5, 100
"""Five attempts outlast a deploy with the default backoff; a hundred is a loop, not a retry."""

DELIVERIES_DEFAULT, DELIVERIES_MAX = 100, 10_000
"""Abandons count as deliveries too; a task abandoned a hundred times makes no progress."""

CONSUMERS_MAX = 10_000
"""As in the original codeQ: a limit above this limits nothing."""

TIER_MAX, TOPIC_REF_CHARS_MAX = 10, 63
"""Of `priority_tiers` and `dead_letter_ref`, as in the original codeQ."""

LEASE_MS_MIN, LEASE_MS_DEFAULT, LEASE_MS_MAX = 100, 300_000, 12 * 3_600_000
"""Below 100 ms a lease ends before its reply arrives; twelve hours is what SQS allows, and a heartbeat extends it."""

DELAY_MS_MAX = 366 * 86_400_000
"""A year: schedules further out belong in a calendar."""

BACKOFF_MS_MAX = 86_400_000
"""A retry later than a day from now is a new task."""

RETENTION_MS_DEFAULT, RETENTION_MS_MAX = 86_400_000, 366 * 86_400_000
"""A day to fetch a result, as in the original codeQ; a year for audits."""

CLAIM_WAIT_MS_MAX = 30_000
"""Shorter than the idle timeout of common proxies."""

RESULT_WAIT_MS_MAX = 60_000
"""As in the original codeQ: longer waits are better served by a webhook."""

INSPECT_TASKS_MAX = 200
"""How many due or expired tasks one claim may move first: bounds its cost when many fall due at once."""

PROMOTE_TASKS_MAX = 200
"""How many delayed tasks are promoted in the background before other calls run; more follow at once."""

SWEEP_TASKS_MAX = 200
"""How many tasks one background sweep moves before other calls run: about five milliseconds."""

LIST_TASKS_MAX = 1000
"""Tasks in one page."""

LIST_SCAN_MAX = 5000
"""How many records one page may read; a page that finds few has a cursor to continue from."""

FIND_SCAN_MAX = 100
"""How many of them the store reads before other calls run: about a millisecond."""

MOVE_TASKS_MAX = 200
"""How many tasks a bulk operation moves before other calls run: about five milliseconds."""

LOOP_HOLD_MS = 5
"""How long a long call uses the event loop before others run: a tenth of what a caller notices."""

LOOP_SHARED_HOLD_MS = 1
"""The same while other tenants make short calls, each of which passes the loop about five times."""

LOOP_SHARED_PAUSES = 4
"""How many times as long as a piece the pause after it is, while other tenants make short calls: those have four fifths
of the time, so that their slowest calls take at most half as long again, and long calls have a fifth."""

LOOP_PAUSE_MS_MAX = 50
"""The longest such pause, also where the machine was asleep during a piece."""

SHORT_CALL_MS = 10
"""For how long after its beginning a short call counts as running: most take one or two milliseconds."""

BATCH_PIECE_MAX = 128
"""Tasks of a batch that are stored, claimed or moved before other calls may run: about a millisecond."""

SHORT_BATCH_MAX = 32
"""Tasks of a batch that count as a short call: even the batches of eight connections take a few milliseconds."""

PIECE_BYTES_MAX = 256 << 10
"""Payload bytes after which such a piece ends: they are checked, copied and written in about a millisecond."""

EVENTS_READ_MAX = 50_000
"""Events in one read: about seven megabytes."""

EVENTS_PIECE_MAX = 1024
"""Events that are read and built before other calls run: about two milliseconds, and four whole segments."""

EVENTS_COLUMNS_PIECE_MAX = 4096
"""The same for Arrow columns, which are built all at once in a third of the time per event."""

EVENTS_PAUSE_MS = 2
"""Pause between two pieces while tasks move: leaves half of the time to the queue, and the interpreter to the thread
that runs fsync."""

EVENTS_POLITE_PIECES = 50
"""How many pieces after the last move of a task a read still pauses: about a fifth of a second."""

EVENT_SEGMENT_MAX = 256
"""Events stored under one key: reading one event decodes at most this many."""

WINDOW_TASKS_MAX = 1024
"""Pending tasks read ahead for one queue and priority: one iterator serves eight batches of 128."""

WINDOWS_TASKS_MAX = 65_536
"""Pending tasks read ahead in all queues together: about 60 MB, whatever the backlog."""

WINDOW_BODY_BYTES_MAX = 16 << 20
"""Payload bytes cached beside them, so that a queue whose workers keep up is served without reading."""

COMMITS_WAITING_MAX = 10_000
"""Calls that may wait for one fsync; past this the disk is not keeping up and callers get StoreBusy."""

DISK_RESERVE_BYTES = 64 << 20
"""Free space below which new tasks are refused, so that running ones can still be finished."""

RESTART_GRACE_MS = 10_000
"""The least time left on every live lease after a restart, for healthy workers to reconnect and heartbeat."""

SHARDS_MAX = 4096
"""The shard number has sixteen bits in the task id; more directories than this bring no gain."""

OPEN_TABLES_MAX = 512
"""Table files that a shard keeps open: about 30 GB, and few enough to leave most descriptors to connections."""

OPEN_TABLES_MIN = 32
"""Below this RocksDB opens files again for every look-up."""

FILES_BESIDE_TABLES = 32
"""Other files of a shard: logs, manifests, the lock, the directory, and what a compaction writes."""
