"""Some worker threads of one process, each with a queue of its own; prints what each completed.

python -m tests.priority.swarm_worker redis://127.0.0.1:6379/0 4
"""

import sys
import threading

from codeq.priority import BlockingPriorityQueue


def work(url: str, found: list[str]) -> None:
    with BlockingPriorityQueue(url) as queue:
        while task := queue.dequeue(wait=3):
            queue.complete(task)
            found.append(f"{task.task_id} {task.fencing} {task.attempts}")


def main(url: str, threads: str) -> None:
    found: list[str] = []
    workers = [threading.Thread(target=work, args=(url, found)) for _ in range(int(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.stdout.write("\n".join(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
