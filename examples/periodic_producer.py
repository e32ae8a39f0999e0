"""Enqueue a task every so often. Run two copies for safety: each period is still enqueued once.

    make serve                                                                     # one terminal
    CODEQ_TOKEN=dev-token .venv/bin/python examples/periodic_producer.py --every 60 send_digest

The idempotency key is the period's own number, so whoever comes second gets the task that is there already. The queue
remembers keys as long as the tasks (a day after their end, by default): longer than a period must be.
"""

import argparse
import time
from datetime import UTC, datetime

import codeq


def main() -> None:
    parser = argparse.ArgumentParser(description="Enqueue a task once per period.")
    parser.add_argument("command")
    parser.add_argument("--every", type=float, default=60, help="seconds")
    parser.add_argument("--times", type=int, default=0, help="stop after so many; 0 to go on for ever")
    arguments = parser.parse_args()
    with codeq.Client() as queue:  # CODEQ_URL and CODEQ_TOKEN
        done = 0
        while not arguments.times or done < arguments.times:
            period = int(time.time() // arguments.every)
            start = datetime.fromtimestamp(period * arguments.every, UTC)
            # The same payload from every copy: the key stands for one task, and another payload would be refused.
            task = queue.enqueue(
                arguments.command,
                {"period": start.isoformat()},
                idempotency_key=f"{arguments.command}/{arguments.every:g}/{period}",
            )
            print(f"{start:%H:%M:%S} {task.id}", flush=True)
            done += 1
            time.sleep(max(0.0, (period + 1) * arguments.every - time.time()))


if __name__ == "__main__":
    main()
