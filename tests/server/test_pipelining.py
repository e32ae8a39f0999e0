"""A client that pipelines without end gets its answers, in order, and delays nobody (13.16)."""

import socket
import threading

import httpx
from tests.server.server_process import Server

PATHS = ["/nothing-here", "/v1/codeq/tasks/claim", "/healthz"]
REQUESTS = 40_000


def test_pipelined_requests_that_are_answered_at_once_leave_the_loop_to_others(server: Server) -> None:
    """They are answered at once, without a task of their own, so that nothing else ran before the last of them."""
    for path in PATHS:
        httpx.get(f"{server.base}/metrics")  # which begins a new maximum
        received = flood(server, path)
        held = next(
            float(line.split()[1])
            for line in httpx.get(f"{server.base}/metrics").text.splitlines()
            if line.startswith("codeq_loop_held_max_seconds")
        )
        assert received == REQUESTS
        assert held < 2


def flood(server: Server, path: str) -> int:
    """Sends all requests without waiting for an answer. Returns how many were answered."""
    request = f"GET {path} HTTP/1.1\r\nHost: codeq\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(60)
        sender = threading.Thread(target=connection.sendall, args=(request * REQUESTS,))
        sender.start()
        answers, rest = 0, b""
        while answers < REQUESTS:
            data = connection.recv(1 << 20)
            if not data:
                break
            rest += data
            answers += rest.count(b"HTTP/1.1 ")
            rest = rest[-8:] if not rest.endswith(b"HTTP/1.1 ") else b""
        sender.join()
    return answers
