"""A reviewer for tests that stands still in the middle of a review, so that its worker can be killed there."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from examples.code_review.git_changes import Change
from examples.code_review.reviews import Finding

WAIT_S_MAX = 60.0


class GateReviewer:
    """Names the commit it reviews in the file `began`, and goes on once the file `open` is there."""

    def review(self, change: Change) -> Sequence[Finding]:
        folder = Path(os.environ["GATE_FOLDER"])
        (folder / "began").write_text(change.head)
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not (folder / "open").exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return []
