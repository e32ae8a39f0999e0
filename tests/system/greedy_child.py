"""A tenant that repeats one request on several connections until standard input ends, and prints the statuses it got.

python -m tests.system.greedy_child PORT TOKEN CONNECTIONS STATUS METHOD PATH BODY

It prints "started" once it got STATUS, and ends with an error if that takes more than GIVE_UP_S.
"""

import asyncio
import sys
from collections import Counter

GIVE_UP_S = 60.0


async def repeat(port: int, request: bytes, statuses: Counter[str], expected: asyncio.Event) -> None:
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                statuses[head[9:12].decode()] += 1
                if head[9:12].decode() == sys.argv[4]:
                    expected.set()
                lines = head.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # refused and closed: try again
        finally:
            writer.close()


async def main() -> None:
    port, token, connections, _status, method, path, body = sys.argv[1:]
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    statuses: Counter[str] = Counter()
    expected = asyncio.Event()
    calls = [asyncio.create_task(repeat(int(port), request, statuses, expected)) for _ in range(int(connections))]
    await asyncio.wait_for(expected.wait(), GIVE_UP_S)
    sys.stdout.write("started\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    sys.stdout.write(f"{dict(statuses)}\n")


if __name__ == "__main__":
    asyncio.run(main())
