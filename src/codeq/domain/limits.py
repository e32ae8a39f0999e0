"""Which hard limits codeQ has, each with the reason for its number."""

PAYLOAD_BYTES_MAX = 1 << 20
"""A queue moves references, not files; at one megabyte a batch of claims fits in memory."""

RESULT_BYTES_MAX = 1 << 20
"""As for payloads: larger outcomes belong in artifacts."""

ARTIFACT_NAME_BYTES_MAX = 200
"""Fits a file name on every system, with room for the suffix of a download in progress."""

CONTENT_TYPE_CHARS_MAX = 200
"""The longest registered one has 90 characters, without parameters."""

ARTIFACT_PART_BYTES = 8 << 20
"""Artifacts are stored in parts of this size: what an upload holds in memory, what it loses when it breaks off, and 640
objects for 5 GB."""

ARTIFACT_READ_BYTES = 1 << 20
"""Bytes of an artifact that are read at once to be sent."""

ARTIFACT_BYTES_MAX = 5 << 30
"""What S3 takes in one request; larger files are better written to a store by their program, and linked."""

TASK_ARTIFACT_BYTES_MAX = 20 << 30
"""A few of the largest."""

TENANT_ARTIFACT_BYTES_MAX = TENANT_PAYLOAD_BYTES_MAX = 100 << 30
"""Most of a common disk, so that one tenant does not fill it."""

TASK_ARTIFACTS_MAX = 64
"""Artifacts of a result: their list is stored with it, in up to 150 KB. More files are better packed into one."""

INLINE_ARTIFACTS_BYTES_MAX = 8 << 20
"""Bytes of the artifacts inside one result: they are held in memory as text and as bytes. Larger ones are uploaded."""

BATCH_TASKS_MAX = 1000
"""A larger batch gains nothing: a thousand tasks already share the fsync."""

BATCH_BYTES_MAX = 32 << 20
"""Payload bytes in one batch or one response; bounds what a single call may hold in memory."""

INLINE_BYTES_MAX = 4096
"""Payloads and results up to this length are stored inside their task's record: one key less. Longer ones would be read
whenever a state is."""

WRITE_BYTES_MAX = 2 << 20
"""Bytes of large payloads and results that are written to RocksDB at once: about five milliseconds."""

WRITE_KEYS_MAX = 512
"""Keys after which the write buffer is written, in the turn of the call that filled it: about a millisecond."""

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

WORKER_NAME_PATTERN = r"[A-Za-z0-9_.:@+\-]{1,100}"
"""What a worker calls itself: a host name and a process id, safe in URLs. Copied into every later event of the task,
so it must stay small."""

WORKER_TEXT_CHARS_MAX = 100
"""Of its host and its version: they fit on a line of a screen."""

WORKER_SLOTS_MAX = 100_000
"""Far more than a process runs at once."""

WORKERS_MAX = 1_000
"""Workers of a tenant that are registered at a time, each in at most 5 KB: they are read together to be listed. Further
ones work as well, and are not listed."""

WORKERS_KNOWN_MAX = 10_000
"""Workers of all tenants of which a process remembers when it registered them last; others cost a look-up."""

WORKER_TTL_MS = 90_000
"""How long a worker is listed after it was heard from: three claims that wait as long as they may."""

WORKER_REFRESH_MS = 15_000
"""How often a registration is written again, however often the worker claims: a sixth of its time."""

WORKER_CHANGE_MS = 1_000
"""How often a worker may change what it tells about itself."""

WORKER_TASKS_SHOWN_MAX = 10
"""Ids of tasks that are listed with the worker that holds them."""

WORKERS_SCAN_MAX = 10_000
"""Tasks in progress that are read to say what workers hold; beyond them the numbers are lower bounds."""

REQUEST_ID_CHARS_MAX = 64
"""Fits a UUID or the hash of anything longer. It is held in memory with the leases of its claim."""

COMPARE_BYTES_MAX = 128 << 10
"""Payloads up to this size are compared as JSON values under a repeated idempotency key, longer ones byte for byte: the
comparison holds the event loop, for a few milliseconds at this size."""

ERROR_CHARS_MAX = 2000
"""The head of a stack trace. It is copied into every later event of the task, so it must stay small."""

TRACEBACK_CHARS_MAX = 1500
"""The end of a traceback, within the text of an error: the last eight or so frames, which have the cause."""

PROGRESS_CHARS_MAX = 200
"""One line on a screen; it is held in memory with the lease."""

WEBHOOK_CHARS_MAX = 2000
"""The longest URL that browsers and proxies accept."""

WEBHOOK_RESPONSE_BYTES_MAX = 16 << 10
"""Of an answer to a webhook, headers included: only its status and one header are used. Of hostile bytes this is about
eight milliseconds of parsing."""

WEBHOOK_RETRY_AFTER_MS_MAX = 3_600_000
"""The longest `Retry-After` of a receiver that is honoured: an hour, as a delivery should not outlive its retention."""

WEBHOOK_SECRETS_MAX = 2
"""Secrets that are valid at a time: the new one and, until every receiver has it, the old one."""

WEBHOOK_SECRET_BYTES_MIN, WEBHOOK_SECRET_BYTES_MAX = 24, 64
"""As in Standard Webhooks: from 192 bits, and up to the block size of SHA-256."""

WEBHOOK_TOLERANCE_S = 300
"""How far the time of a webhook may be from the receiver's: five minutes, as in Standard Webhooks."""

WEBHOOK_LOOKUPS_MAX, WEBHOOK_TENANT_LOOKUPS_MAX = 128, 8
"""Host names that are looked up at once, in all and for one tenant: each takes a thread, for half a minute if the name
servers do not answer."""

WEBHOOK_TENANTS_MAX = 50_000
"""Tenants with deliveries to send that are remembered at once: about 15 MB. The others are found by a later look."""

WEBHOOK_BYTES_MAX = 64 << 20
"""Bytes of deliveries that are being sent, of all tenants."""

WEBHOOK_BREAKERS_MAX = 10_000
"""Hosts whose failures in a row are counted; the least recent ones are forgotten first."""

WEBHOOK_WAIT_MS_MAX = 3 * 86_400_000
"""How long a delivery waits for a host that fails every trial: over a weekend. Then it is dead, not kept for ever."""

WEBHOOK_ADDRESSES_MAX = 4
"""Addresses of one host that are tried: further ones would not be reached within the time of a delivery."""

TRACE_CHARS_MAX = 512
"""The limit that W3C Trace Context sets for `tracestate`."""

TRACE_LINKS_MAX = 32
"""Traces that one span links to; OpenTelemetry keeps 128."""

TRACE_LINK_BYTES_MAX = 1024 * 1024
"""Payloads that are read to find them, since a task's trace is stored in its body. About a millisecond."""

PRIORITY_MIN, PRIORITY_MAX = 0, 9
"""One decimal digit, 9 first: a person can distinguish ten tiers, and one claim can check them all."""

WATCHED_LEASES_MAX = 256
"""Leases that one call watches: their records are read in about a millisecond. A worker seldom has more that are old
enough to be watched; cancellations of others are found by heartbeats."""

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

SWEEP_TASKS_MAX = 64
"""How many tasks one background sweep moves before other calls run: about two milliseconds."""

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
"""Tasks of a batch that count as a short call: even the batches of eight connections take a few milliseconds. Also the
tasks that a long claim takes before it looks at its time, while other tenants make short calls: over many queues, 128
of them take several milliseconds."""

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

WEBHOOK_ATTEMPTS_DEFAULT = 5
WEBHOOK_DELIVERIES_DEFAULT = DELIVERIES_MAX
WEBHOOK_BACKOFF_BASE_MS = 2_000
WEBHOOK_BACKOFF_MAX_MS = 60_000
"""How a delivery to a webhook is retried: over half a minute, as in the original codeQ. A receiver that is down for
longer finds the delivery among the dead ones, where it can be replayed."""

SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of a tenant: a queue that becomes ready may notify them all, and each takes about a kilobyte."""
SUBSCRIPTION_TTL_MS_MIN, SUBSCRIPTION_TTL_MS_MAX = 1_000, 86_400_000
SUBSCRIPTION_TTL_MS_DEFAULT = 300_000
SUBSCRIPTION_INTERVAL_MS_MAX = 3_600_000
SUBSCRIPTION_INTERVAL_MS_DEFAULT = 5_000
"""As in the original codeQ. A worker that dies without a word is notified in vain for its time to live at most."""
GROUP_CHARS_MAX = 128
NOTIFY_QUEUES_MAX, NOTIFY_TENANT_QUEUES_MAX, NOTIFY_TENANT_QUEUES_MIN = 10_000, 1_000, 32
"""Queues whose changes are followed until they are looked at, of all tenants and of one; the last number of them for
each tenant, whatever the others have. A queue beyond them is found when it gets its next task."""
NOTIFY_DEFERRED_MAX = 10_000
"""Notifications of a tenant that wait until their subscriptions' intervals have passed: half a megabyte."""
