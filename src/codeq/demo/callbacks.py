"""Receives the result callbacks of the demo: verifies each, and refuses some of them at first."""

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from codeq.errors import WebhookInvalid
from codeq.sdk.webhooks import verify_webhook
from codeq.wire.webhooks import ID

SECRET = "a-secret-for-the-demo-alone"  # noqa: S105 - of a server that ends with the demo
REFUSED_ONE_IN = 5


class CallbackReceiver:
    """An HTTP server in a thread of its own. Of every few deliveries the first attempt is answered with 503."""

    def __init__(self) -> None:
        self.task_ids: set[str] = set()
        """The tasks whose callbacks were accepted."""
        self.accepted = 0
        self.refused = 0
        self.forged = 0
        self._attempts: Counter[str] = Counter()
        self._lock = threading.Lock()
        receive = self._receive

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                self.send_response(receive(dict(self.headers.items()), body))
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/ended"

    @property
    def server_settings(self) -> dict[str, str]:
        """Variables for a server that is to call this receiver."""
        return {
            "CODEQ_WEBHOOKS_ALLOW": "127.0.0.1",
            "CODEQ_WEBHOOKS_SECRET": SECRET,
            "CODEQ_WEBHOOKS_MAX_ATTEMPTS": "50",
            "CODEQ_WEBHOOKS_BACKOFF_BASE_SECONDS": "0.2",
            "CODEQ_WEBHOOKS_BACKOFF_MAX_SECONDS": "1",
            "CODEQ_WEBHOOKS_TIMEOUT_SECONDS": "3",
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _receive(self, headers: dict[str, str], body: bytes) -> int:
        with self._lock:
            try:
                callback = verify_webhook(headers, body, SECRET)
            except WebhookInvalid:
                self.forged += 1
                return 401
            webhook_id = headers[ID]
            self._attempts[webhook_id] += 1
            if self._attempts[webhook_id] == 1 and len(self._attempts) % REFUSED_ONE_IN == 0:
                self.refused += 1
                return 503
            self.accepted += 1
            self.task_ids.add(callback["taskId"])
            return 204
