"""How a process works on tasks: it registers functions for commands, claims, runs them and reports their results.

Imports the rest of sdk, domain and wire.
"""

from codeq.sdk.worker.execution import Fail, Interrupted, Retry
from codeq.sdk.worker.running_job import RunningJob, current_job
from codeq.sdk.worker.worker import Worker

__all__ = ["Fail", "Interrupted", "Retry", "RunningJob", "Worker", "current_job"]
