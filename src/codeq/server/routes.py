"""Every route of the service on one screen: path, token kind, handler, request and response messages."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from codeq.domain.limits import BATCH_BYTES_MAX, INLINE_ARTIFACTS_BYTES_MAX, PAYLOAD_BYTES_MAX
from codeq.server.auth.principal import TokenKind
from codeq.server.handlers import (
    admin,
    artifacts,
    events,
    producer,
    queries,
    subscriptions,
    system,
    webhooks,
    worker,
)
from codeq.server.ratelimit import Charge
from codeq.server.request import Handler, InstantHandler
from codeq.wire import artifacts as files
from codeq.wire import deliveries, paths, queues, tasks
from codeq.wire import events as wire_events
from codeq.wire import subscriptions as subscriptions_wire
from codeq.wire import system as system_wire
from codeq.wire import workers as workers_wire

_SMALL = 64 * 1024
_ONE = 2 * PAYLOAD_BYTES_MAX
_MANY = BATCH_BYTES_MAX + BATCH_BYTES_MAX // 4
"""A quarter for what is not payload: names, keys, webhooks."""
_BEATS = 2 << 20
"""A thousand heartbeats, each with the longest progress."""
_WITH_FILES = 2 * INLINE_ARTIFACTS_BYTES_MAX
"""A result with files inside, as base64."""
_STREAMED = 10**12
"""A body that is not held in memory; its own limit is a setting."""
_CONDITIONS = ("If-Match", "If-None-Match")
_NONE, _PRODUCER, _WORKER, _ANY, _ADMIN = TokenKind


class Route(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    kind: TokenKind
    handler: Handler
    summary: str
    gives: tuple[tuple[int, Any], ...]
    """Statuses and messages of success."""
    takes: Any = None
    refuses: tuple[int, ...] = ()
    """Statuses of refusals, besides those of every route."""
    scope: str | None = None
    charge: Charge
    """Which rate limit counts it; a batch is counted by its items."""
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    """Headers that only this route reads."""
    body_max: int = _SMALL
    streams: bool = False
    """Whether the handler takes the body while it arrives, and bounds it itself."""
    instant: InstantHandler | None = None
    """The same without waiting, and so without an asyncio task, for a route without a token."""
    is_bulk: bool = False
    """Whether a call may take long. Those that do not say so themselves, once they know how much there is to do."""
    media: str = "application/json"


_CREATE, _CLAIM, _HEARTBEAT, _SUBMIT = (
    Charge("producer", "create_task"),
    Charge("worker", "claim"),
    Charge("lease", "heartbeat"),
    Charge("lease", "submit_result"),
)
_CHARGED = {_PRODUCER: "producer", _WORKER: "lease", _ADMIN: "admin"}


def _route(method: str, path: str, kind: TokenKind, handler: Handler, summary: str, **rest: Any) -> Route:
    rest.setdefault("charge", Charge(_CHARGED.get(kind, "read"), handler.__name__))
    return Route(method=method, path=path, kind=kind, handler=handler, summary=summary, **rest)


ROUTES: Sequence[Route] = (
    _route("POST", paths.TASKS, _PRODUCER, producer.create, "Create a task",
           takes=tasks.CreateTask, gives=((202, tasks.TaskView),), refuses=(422, 507), scope="codeq:create",
           body_max=_ONE, charge=_CREATE),
    _route("POST", paths.TASKS_BATCH, _PRODUCER, producer.create_many, "Create up to 1000 tasks",
           takes=tasks.CreateTasks, gives=((200, tasks.TaskAnswers),), refuses=(507,), scope="codeq:create",
           body_max=_MANY, charge=_CREATE, is_bulk=True),
    _route("GET", paths.TASKS, _ANY, queries.list_tasks, "List tasks, newest first",
           gives=((200, tasks.TaskPage),),
           query=("command", "status", "queue", "error", "createdFrom", "createdTo", "cursor", "limit"), is_bulk=True),
    _route("POST", paths.CLAIM, _WORKER, worker.claim_one, "Claim a task, waiting for one if asked to",
           takes=tasks.Claim, gives=((200, tasks.TaskView), (204, None)), scope="codeq:claim", charge=_CLAIM),
    _route("POST", paths.CLAIM_BATCH, _WORKER, worker.claim_many, "Claim up to 1000 tasks",
           takes=tasks.ClaimBatch, gives=((200, tasks.ClaimedTasks), (204, None)), scope="codeq:claim", charge=_CLAIM,
           is_bulk=True),
    _route("POST", paths.RESULTS_BATCH, _WORKER, worker.submit_many, "Submit up to 1000 results",
           takes=tasks.SubmitBatch, gives=((200, tasks.SubmitAnswers),), scope="codeq:result", body_max=_MANY,
           charge=_SUBMIT, is_bulk=True),
    _route("GET", paths.TASK, _ANY, queries.get_task, "Get a task", gives=((200, tasks.TaskView),), refuses=(404,)),
    _route("GET", paths.RESULT, _ANY, queries.get_result, "Get a task's result, waiting for it if asked to",
           gives=((200, tasks.TaskAndResult),), refuses=(404,), query=("waitSeconds",)),
    _route("GET", paths.HISTORY, _ANY, queries.get_history, "Get all moves of a task",
           gives=((200, wire_events.History),), refuses=(404,), is_bulk=True),
    _route("POST", paths.HEARTBEAT, _WORKER, worker.heartbeat, "Extend the lease on a task",
           takes=tasks.Heartbeat, gives=((200, tasks.HeartbeatAnswer),), refuses=(404, 409), scope="codeq:heartbeat",
           charge=_HEARTBEAT),
    _route("POST", paths.HEARTBEATS_BATCH, _WORKER, worker.heartbeat_many, "Extend the leases on up to 1000 tasks",
           takes=tasks.HeartbeatBatch, gives=((200, tasks.HeartbeatResults),), scope="codeq:heartbeat",
           body_max=_BEATS, charge=_HEARTBEAT, is_bulk=True),
    _route("POST", paths.LEASES_WATCH, _WORKER, worker.watch_leases, "Wait until one of these leases is lost",
           takes=tasks.WatchLeases, gives=((200, tasks.LeaseEnds),), scope="codeq:heartbeat", is_bulk=True),
    _route("POST", paths.ABANDON, _WORKER, worker.abandon, "Return a task to its queue without counting an attempt",
           takes=tasks.Abandon, gives=((200, tasks.GiveBackAnswer),), refuses=(404, 409), scope="codeq:abandon"),
    _route("POST", paths.NACK, _WORKER, worker.nack, "Report a failed attempt",
           takes=tasks.Nack, gives=((200, tasks.GiveBackAnswer),), refuses=(404, 409), scope="codeq:nack"),
    _route("POST", paths.RESULT, _WORKER, worker.submit_one, "Submit a task's result",
           takes=tasks.Submit, gives=((200, tasks.ResultView),), refuses=(404, 409), scope="codeq:result",
           body_max=_WITH_FILES, charge=_SUBMIT),
    _route("GET", paths.ARTIFACTS, _ANY, artifacts.list_artifacts, "List the files of a task's result",
           gives=((200, files.ArtifactViews),), refuses=(404,)),
    _route("GET", paths.ARTIFACT, _ANY, artifacts.download_artifact, "Download a file; with a lease, see its upload",
           gives=((200, None), (206, None)), refuses=(404, 409, 416), query=artifacts.LEASE_QUERY,
           headers=artifacts.RANGE_HEADERS, media="application/octet-stream"),
    _route("PUT", paths.ARTIFACT, _WORKER, artifacts.upload_artifact, "Upload a file for the result, or continue to",
           gives=((201, files.UploadView), (202, files.UploadView)), refuses=(404, 409, 507), scope="codeq:result",
           query=artifacts.LEASE_QUERY, headers=artifacts.UPLOAD_HEADERS, body_max=_STREAMED, streams=True),
    _route("DELETE", paths.ARTIFACT, _WORKER, artifacts.delete_artifact, "Delete an upload that no result has named",
           gives=((204, None),), refuses=(404, 409), scope="codeq:result", query=artifacts.LEASE_QUERY),
    _route("POST", paths.CANCEL, _PRODUCER, producer.cancel, "Cancel a task",
           gives=((200, tasks.TaskView),), refuses=(404, 409), scope="codeq:cancel"),
    _route("GET", paths.QUEUES, _ANY, queries.list_queues, "List queues with exact counts",
           gives=((200, queues.QueueViews),), is_bulk=True),
    _route("GET", paths.EVENTS, _ANY, events.read_events, "Read the event log by shard and offset (JSON or Arrow)",
           gives=((200, wire_events.EventPage),), scope="codeq:events",
           query=events.QUERY, is_bulk=True),
    _route("GET", paths.ADMIN_QUEUES, _ADMIN, admin.all_queues, "Counts of all queues as a flat map",
           gives=((200, dict[str, int]),), is_bulk=True),
    _route("GET", paths.ADMIN_QUEUE, _ADMIN, admin.one_queue, "Counts and effective policy of one queue",
           gives=((200, queues.QueueDetails),)),
    _route("POST", paths.PAUSE, _ADMIN, admin.pause, "Pause delivery from a queue",
           gives=((200, queues.QueueDetails),)),
    _route("POST", paths.RESUME, _ADMIN, admin.resume, "Resume delivery from a queue",
           gives=((200, queues.QueueDetails),)),
    _route("POST", paths.CLEANUP, _ADMIN, admin.cleanup, "Delete ended tasks before their retention has passed",
           takes=queues.Cleanup, gives=((200, queues.Cleaned),), is_bulk=True),
    _route("PUT", paths.TOPIC, _ADMIN, admin.put_topic, "Set the policy of a queue",
           takes=queues.PutTopic, gives=((200, queues.Topic), (201, queues.Topic)), refuses=(412,),
           headers=_CONDITIONS),
    _route("GET", paths.TOPIC, _ADMIN, admin.get_topic, "Get the policy of a queue",
           gives=((200, queues.Topic),), refuses=(404,)),
    _route("DELETE", paths.TOPIC, _ADMIN, admin.delete_topic, "Delete the policy of a queue",
           gives=((204, None),), refuses=(412,), query=("deletionPolicy",), headers=_CONDITIONS),
    _route("GET", paths.DLQ, _ADMIN, admin.list_dead, "List dead tasks, oldest first",
           gives=((200, tasks.TaskPage),), query=("command", "error", "cursor", "limit"), is_bulk=True),
    _route("POST", paths.DLQ_REPLAY, _ADMIN, admin.replay_dead, "Put dead tasks back into their queues",
           takes=queues.Selection, gives=((200, queues.Selected),), is_bulk=True),
    _route("POST", paths.DLQ_PURGE, _ADMIN, admin.purge_dead, "Delete dead tasks",
           takes=queues.Selection, gives=((200, queues.Selected),), is_bulk=True),
    _route("GET", paths.DELIVERIES, _ADMIN, webhooks.list_deliveries, "List deliveries, newest first",
           gives=((200, deliveries.DeliveryPage),), query=("state", "error", "cursor", "limit"), is_bulk=True),
    _route("GET", paths.DELIVERY, _ADMIN, webhooks.get_delivery, "Get a delivery, with its body and response",
           gives=((200, deliveries.DeliveryView),), refuses=(404,)),
    _route("POST", paths.DELIVERIES_REPLAY, _ADMIN, webhooks.replay_deliveries, "Send dead deliveries again",
           takes=deliveries.SelectDeliveries, gives=((200, queues.Selected),), is_bulk=True),
    _route("POST", paths.WEBHOOK_TEST, _ADMIN, webhooks.send_test, "Send a test delivery to a URL",
           takes=deliveries.WebhookTest, gives=((202, deliveries.DeliveryView),)),
    _route("GET", paths.WEBHOOK_SECRET, _ADMIN, webhooks.show_secret, "Get the secrets that sign the tenant's webhooks",
           gives=((200, deliveries.WebhookSecret),)),
    _route("POST", paths.BACKUP, _ADMIN, admin.back_up, "Back up the running server (platform admins)",
           takes=system_wire.BackUp, gives=((200, system_wire.Backup),), refuses=(404, 409), is_bulk=True),
    _route("GET", paths.WORKERS, _ADMIN, worker.list_workers, "List workers with the tasks that they hold",
           gives=((200, workers_wire.WorkerViews),), is_bulk=True),
    _route("DELETE", paths.WORKER, _WORKER, worker.leave, "Remove a worker that stops from the list",
           gives=((204, None),), scope="codeq:claim"),
    _route("POST", paths.SUBSCRIPTIONS, _WORKER, subscriptions.subscribe,
           "Subscribe to notifications that queues have tasks", takes=subscriptions_wire.Subscribe,
           gives=((200, subscriptions_wire.Subscribed),), scope="codeq:subscribe"),
    _route("POST", paths.SUBSCRIPTION_HEARTBEAT, _WORKER, subscriptions.renew_subscription, "Renew a subscription",
           takes=subscriptions_wire.RenewSubscription, gives=((200, subscriptions_wire.Subscribed),), refuses=(404,),
           scope="codeq:subscribe"),
    _route("DELETE", paths.SUBSCRIPTION, _WORKER, subscriptions.unsubscribe, "End a subscription",
           gives=((204, None),), refuses=(404,), scope="codeq:subscribe"),
    _route("GET", paths.ADMIN_SUBSCRIPTIONS, _ADMIN, subscriptions.list_subscriptions, "List subscriptions",
           gives=((200, subscriptions_wire.SubscriptionViews),), is_bulk=True),
    _route("DELETE", paths.ADMIN_SUBSCRIPTION, _ADMIN, subscriptions.delete_subscription, "Delete a subscription",
           gives=((204, None),), refuses=(404,)),
    _route("GET", paths.HEALTHZ, _NONE, system.healthz, "Whether the process is alive",
           gives=((200, system_wire.Health),), instant=system.healthy),
    _route("GET", paths.READYZ, _NONE, system.readyz, "Whether a write reaches the disk",
           gives=((200, system_wire.Health), (503, system_wire.Health))),
    _route("GET", paths.METRICS, _NONE, system.metrics, "Metrics for Prometheus", gives=((200, None),),
           media="text/plain"),
    _route("GET", paths.OPENAPI, _NONE, system.openapi, "This description", gives=((200, None),)),
    _route("GET", paths.DOCS, _NONE, system.docs, "This description, for people", gives=((200, None),),
           media="text/html"),
    _route("GET", paths.JWKS, _NONE, system.jwks, "Keys of a development server", gives=((200, None),),
           refuses=(404,)),
)  # fmt: skip
