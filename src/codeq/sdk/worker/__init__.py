"""Workers: functions that tasks are handed to, and the process that hands them out."""

from codeq.sdk.worker.execution import Fail, Interrupted, Retry
from codeq.sdk.worker.running_job import RunningJob, current_job
from codeq.sdk.worker.worker import Worker

__all__ = ["Fail", "Interrupted", "Retry", "RunningJob", "Worker", "current_job"]
