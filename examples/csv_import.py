"""Turn the rows of a CSV file into tasks, in batches. Start it again after a crash, or just to be sure.

    make serve                                                                     # one terminal
    CODEQ_TOKEN=dev-token .venv/bin/python examples/csv_import.py customers.csv import_customer

Each row has a key made of its place and its content, so a second run enqueues only what the first one did not get to.
"""

import argparse
import csv
import hashlib
import json
from pathlib import Path

from rich.progress import Progress

import codeq


def main() -> None:
    parser = argparse.ArgumentParser(description="Enqueue one task per row.")
    parser.add_argument("file", type=Path)
    parser.add_argument("command")
    arguments = parser.parse_args()
    rows = 0
    # `batcher` sends rows together and waits when the server cannot keep up, so memory stays small whatever the file.
    # Leaving the block sends the rest, and raises if any row was refused.
    with (
        codeq.Client() as queue,  # CODEQ_URL and CODEQ_TOKEN
        queue.batcher() as batcher,
        arguments.file.open(newline="", encoding="utf-8") as lines,
        Progress() as progress,
    ):
        shown = progress.add_task(arguments.file.name, total=arguments.file.stat().st_size)
        for rows, row in enumerate(csv.DictReader(lines), 1):
            content = json.dumps(row, sort_keys=True)
            key = hashlib.sha256(f"{arguments.file.name}\0{rows}\0{content}".encode()).hexdigest()
            batcher.enqueue(arguments.command, row, idempotency_key=key)
            progress.advance(shown, len(content))
    print(f"{rows} rows are in the queue")


if __name__ == "__main__":
    main()
