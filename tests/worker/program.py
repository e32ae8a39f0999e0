"""A worker as a program of its own: `python -m tests.worker.program '{"url": ..., "token": ..., "tasks": {...}}'`."""

import json
import logging
import sys

from tests.worker.working import make_worker

import codeq

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(codeq_task_id)s %(message)s")
    logging.setLogRecordFactory(logging.getLogRecordFactory())
    said = json.loads(sys.argv[1])
    make_worker(said["tasks"], **said["options"]).run(codeq.Client(said["url"], said["token"]))
