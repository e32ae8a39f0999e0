"""A receiver in a process of its own, to be killed: `python failing_receiver.py PORT LOG SEED`.

It answers a third of all requests with 500, and appends each request to the log before it answers.
"""

import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec


def main(port: int, log: Path, seed: int) -> None:
    dice, lock = random.Random(seed), threading.Lock()
    file = log.open("ab", buffering=0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if len(body) < int(self.headers["content-length"]):
                return  # the server was killed while it sent
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                status = 500 if dice.random() < 1 / 3 else 204
                line = {"at": time.time(), "status": status, "headers": headers, "body": body.decode()}
                file.write(msgspec.json.encode(line) + b"\n")
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
