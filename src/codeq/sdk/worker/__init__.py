"""Workers: functions that tasks are handed to, and the process that hands them out."""

from codeq.sdk.worker.handling import Fail, Interrupted, Retry
from codeq.sdk.worker.registry import Worker
from codeq.sdk.worker.running_job import RunningJob, current_job

__all__ = ["Fail", "Interrupted", "Retry", "RunningJob", "Worker", "current_job"]
