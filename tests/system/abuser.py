"""Sends the same requests over and over, from a process of its own: `python abuser.py PORT SECONDS REQUESTS_FILE`."""

import asyncio
import pickle
import sys
import time
from pathlib import Path

CONNECTIONS = 8


async def flood(port: int, until_s: float, requests: list[bytes]) -> int:
    sent = 0
    while time.monotonic() < until_s:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(until_s - time.monotonic() + 0.2):
                while True:
                    for request in requests:
                        writer.write(request)
                        sent += 1
                        head = await reader.readuntil(b"\r\n\r\n")
                        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0].strip()
                        await reader.readexactly(int(length or 0))
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.02)  # it was refused, or the time is up
        finally:
            if "writer" in locals():
                writer.close()
    return sent


async def main(port: int, seconds: float, requests: list[bytes]) -> None:
    until_s = time.monotonic() + seconds
    sent = await asyncio.gather(*(flood(port, until_s, requests) for _ in range(CONNECTIONS)))
    print(sum(sent))  # noqa: T201


if __name__ == "__main__":
    wanted = pickle.loads(Path(sys.argv[3]).read_bytes())
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), wanted))
