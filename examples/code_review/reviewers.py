"""The reviewer interface, and three reviewers: ruff, the size of the change, and what nobody could read.

The setting `CODE_REVIEW_REVIEWERS` lists the functions that make them, as `module:name`. Reviewers read; none executes,
imports or builds what it reviews.
"""

import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import msgspec
from msgspec import Struct

from .bounded_process import run_bounded
from .git_changes import Change, ChangedFile
from .reviews import Finding

RUFF_S_MAX = 60.0
RUFF_OUTPUT_BYTES_MAX = 16_000_000
RUFF_RULES = "E7,E9,F,B,S3,S6"
"""Mistakes rather than taste: errors, unused and undefined names, likely bugs, unsafe calls, shells."""
LINES_MAX = 400
"""Past a few hundred lines people stop finding defects in a change, and approve it."""
FINDINGS_MAX = 500
"""Stored per review; one more says how many there were."""


class Reviewer(Protocol):
    """Finds what is wrong with a change. Another tool, or a language model, is plugged in by this one method."""

    def review(self, change: Change) -> Sequence[Finding]:
        """Returns the findings. Called in a thread; an exception is a failed try, and the review is tried again. The
        content of the change was written by strangers."""
        ...


def load_reviewers(names: Sequence[str]) -> list[Reviewer]:
    return [pkgutil.resolve_name(name)() for name in names]


def review_all(reviewers: Sequence[Reviewer], change: Change) -> list[Finding]:
    """Returns what all reviewers found, by file and line."""
    found = [finding for reviewer in reviewers for finding in reviewer.review(change)]
    found.sort(key=lambda finding: (finding.file, finding.line, finding.rule))
    if len(found) > FINDINGS_MAX:
        more = Finding("", 0, "too-many-findings", f"{len(found)} findings; the first {FINDINGS_MAX} are shown")
        found = [more, *found[:FINDINGS_MAX]]
    return found


class SizeReviewer:
    """Objects to a change that is too large to be read with attention."""

    def __init__(self, lines_max: int = LINES_MAX) -> None:
        self.lines_max = lines_max

    def review(self, change: Change) -> Sequence[Finding]:
        sizes = {file.path: len(file.lines) + file.removed for file in change.files}
        total = sum(sizes.values())
        if total <= self.lines_max:
            return []
        largest = max(sizes, key=lambda path: sizes[path])
        message = f"{total} lines changed, {sizes[largest]} of them in {largest}; more than {self.lines_max}"
        return [Finding("", 0, "large-change", f"{message} are hard to review")]


class UnreadReviewer:
    """Names the files that no reviewer saw, so that silence is never taken for approval."""

    def review(self, change: Change) -> Sequence[Finding]:
        return [
            Finding(file.path, 0, "not-reviewed", f"this file was not reviewed: {file.not_read}")
            for file in change.files
            if file.not_read
        ]


class _Location(Struct):
    row: int


class _RuffFinding(Struct):
    filename: str
    code: str | None
    message: str
    location: _Location


class RuffReviewer:
    """Runs ruff on the changed Python files, and reports what concerns the changed lines."""

    def review(self, change: Change) -> Sequence[Finding]:
        files = [file for file in change.files if file.content is not None and file.path.endswith((".py", ".pyi"))]
        return self._run(files) if files else []

    def _run(self, files: Sequence[ChangedFile]) -> list[Finding]:
        """Copies the files under numbers, so that neither their names nor a ruff.toml among them have an effect."""
        with TemporaryDirectory(prefix="review-") as folder:
            copies = {str(number) + Path(file.path).suffix: file for number, file in enumerate(files)}
            for name, file in copies.items():
                (Path(folder) / name).write_bytes(file.content or b"")
            # -I: no module of the folder that the worker was started in is taken for one of ruff's.
            command = [sys.executable, "-I", "-m", "ruff", "check", "--isolated", "--no-cache", "--exit-zero"]
            command += ["--quiet", "--output-format=json", f"--select={RUFF_RULES}", "--", folder]
            output = run_bounded(
                command, seconds=RUFF_S_MAX, output_max=RUFF_OUTPUT_BYTES_MAX, env={"PATH": os.defpath}
            )
            said = [(copies[Path(each.filename).name], each) for each in _decode(output)]
        return [
            Finding(file.path, each.location.row, each.code or "invalid-syntax", each.message)
            for file, each in said
            if each.location.row in file.lines or each.code in (None, "invalid-syntax")
        ]


_decode = msgspec.json.Decoder(list[_RuffFinding]).decode
