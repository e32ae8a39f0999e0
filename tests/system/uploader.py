"""Uploads the same files over and over and breaks some off: `python uploader.py PORT SECONDS REQUESTS_FILE`.

The file has the heads of the requests, one for each connection. Prints how many bytes were sent.
"""

import itertools
import pickle
import socket
import struct
import sys
import threading
import time
from pathlib import Path

WHOLE, LONG = 8 << 20, 20 << 20
"""One of the first length is sent whole, one of the second is broken off: by an end of file, or by a reset."""
CONTENT = memoryview(bytes(LONG))
RESET = struct.pack("ii", 1, 0)


def upload(port: int, head: bytes, until_s: float) -> int:
    sent = 0
    lengths = itertools.cycle([WHOLE, LONG, WHOLE, LONG, LONG])
    while time.monotonic() < until_s:
        length = next(lengths)
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
                link.sendall(head + b"Content-Length: %d\r\n\r\n" % length)
                sent += send(link, length if length == WHOLE else length * 2 // 3, until_s)
                if length == WHOLE:
                    link.recv(65536)
                elif sent % 2:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        except OSError:
            time.sleep(0.02)  # it was refused
    return sent


def send(link: socket.socket, size: int, until_s: float) -> int:
    sent = 0
    while sent < size and time.monotonic() < until_s:
        sent += link.send(CONTENT[: size - sent])
    return sent


def main(port: int, seconds: float, heads: list[bytes]) -> None:
    until_s = time.monotonic() + seconds
    sent: list[int] = []
    callers = [threading.Thread(target=lambda head=head: sent.append(upload(port, head, until_s))) for head in heads]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    print(sum(sent))  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), pickle.loads(Path(sys.argv[3]).read_bytes()))
