"""How a process works on tasks: it registers functions for commands, claims, runs them and reports their results.

Imports the rest of sdk, domain and wire.
"""

from codeq.sdk.worker.hooks import Failure
from codeq.sdk.worker.outcomes import Bury, Fail, Interrupted, Retry, Snooze
from codeq.sdk.worker.running_job import RunningJob, current_job
from codeq.sdk.worker.worker import Worker

__all__ = ["Bury", "Fail", "Failure", "Interrupted", "Retry", "RunningJob", "Snooze", "Worker", "current_job"]
