"""The URL path of every route."""

BASE = "/v1/codeq"

TASKS = f"{BASE}/tasks"
TASKS_BATCH = f"{TASKS}/batch"
CLAIM = f"{TASKS}/claim"
CLAIM_BATCH = f"{TASKS}/claim/batch"
RESULTS_BATCH = f"{TASKS}/batch/results"
HEARTBEATS_BATCH = f"{TASKS}/batch/heartbeats"
LEASES_WATCH = f"{TASKS}/leases/watch"
TASK = f"{TASKS}/{{id}}"
RESULT = f"{TASK}/result"
HEARTBEAT = f"{TASK}/heartbeat"
ABANDON = f"{TASK}/abandon"
NACK = f"{TASK}/nack"
CANCEL = f"{TASK}/cancel"
HISTORY = f"{TASK}/history"
ARTIFACTS = f"{TASK}/artifacts"
ARTIFACT = f"{ARTIFACTS}/{{name}}"
QUEUES = f"{BASE}/queues"
EVENTS = f"{BASE}/events"
ADMIN_QUEUES = f"{BASE}/admin/queues"
ADMIN_QUEUE = f"{ADMIN_QUEUES}/{{command}}"
PAUSE = f"{ADMIN_QUEUE}/pause"
RESUME = f"{ADMIN_QUEUE}/resume"
CLEANUP = f"{BASE}/admin/tasks/cleanup"
TOPIC = f"{BASE}/admin/topics/{{topic}}"
BACKUP = f"{BASE}/admin/backup"
DLQ = f"{BASE}/admin/dlq"
DLQ_REPLAY = f"{DLQ}/replay"
DLQ_PURGE = f"{DLQ}/purge"
WORKERS = f"{BASE}/workers"
WORKER = f"{WORKERS}/{{name}}"
SUBSCRIPTIONS = f"{BASE}/workers/subscriptions"
SUBSCRIPTION = f"{SUBSCRIPTIONS}/{{id}}"
SUBSCRIPTION_HEARTBEAT = f"{SUBSCRIPTION}/heartbeat"
ADMIN_SUBSCRIPTIONS = f"{BASE}/admin/subscriptions"
ADMIN_SUBSCRIPTION = f"{ADMIN_SUBSCRIPTIONS}/{{id}}"
DELIVERIES = f"{BASE}/admin/webhooks/deliveries"
DELIVERY = f"{DELIVERIES}/{{id}}"
DELIVERIES_REPLAY = f"{DELIVERIES}/replay"
WEBHOOK_TEST = f"{BASE}/admin/webhooks/test"
WEBHOOK_SECRET = f"{BASE}/admin/webhooks/secret"
HEALTHZ, READYZ, METRICS, OPENAPI, DOCS, JWKS = (
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/.well-known/jwks.json",
)
