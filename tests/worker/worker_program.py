"""A worker as a program: `python -m tests.worker.worker_program '{"url": ..., "token": ..., "tasks": {...}}'`."""

import json
import logging
import sys

from tests.worker.workers import make_worker

import codeq

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(codeq_task_id)s %(message)s")
    logging.setLogRecordFactory(logging.getLogRecordFactory())
    options = json.loads(sys.argv[1])
    make_worker(options["tasks"], **options["options"]).run(codeq.Client(options["url"], options["token"]))
