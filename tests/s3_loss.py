"""A server in front of an S3 server that passes every request on, but answers 500 to the first commits that succeed,
and breaks off every seventh answer with a file until so many were: `python -m tests.s3_loss PORT COMMITS FILES`.

In a process of its own: delta-rs holds the interpreter while it waits for an answer.
"""

import re
import sys
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = re.compile(r"_delta_log/0*[1-9]\d*\.json")
FILE = re.compile(r"\.(json|parquet)$")
BREAK_EVERY = 7


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    port = 0
    losses_left = 0
    breaks_left = 0
    files = 0

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        upstream = HTTPConnection("127.0.0.1", self.port)
        upstream.request(self.command, self.path, body, dict(self.headers))
        answer = upstream.getresponse()
        data, status = answer.read(), answer.status
        upstream.close()
        if self.command == "PUT" and status == 200 and COMMIT.search(self.path) and Handler.losses_left:
            Handler.losses_left -= 1
            status, data = 500, b""
            say(f"lost {self.path}")
        self.send_response(status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = answer.getheader("content-length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "GET" and status in (200, 206) and self.is_broken():
            say(f"broken {self.path}")
            self.close_connection = True
            data = data[: len(data) // 2]
        self.wfile.write(data)

    def is_broken(self) -> bool:
        """Whether it is the turn of this answer, if it is a file, to be broken off."""
        if not Handler.breaks_left or not FILE.search(self.path):
            return False
        Handler.files += 1
        Handler.breaks_left -= Handler.files % BREAK_EVERY == 0
        return Handler.files % BREAK_EVERY == 0

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on  # noqa: N815 - as the library wants them

    def log_message(self, *_: object) -> None:
        pass


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    Handler.port, Handler.losses_left, Handler.breaks_left = map(int, sys.argv[1:4])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        say(f"http://127.0.0.1:{server.server_address[1]}")
        server.serve_forever()
