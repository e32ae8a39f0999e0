"""Reads what changed between two commits from a local git repository.

Whoever may push decides what is in it, so nothing in it is trusted:
- git is started with a list of arguments, never through a shell, and without the configuration of this machine;
- commits are hexadecimal and branches have a prefix, so neither can be an option; names of files are no arguments at
  all, because files are read by the hash of their content;
- time, output and number of files are bounded. A file that is left out is named, with the reason.
"""

import os
import re
from pathlib import Path

from msgspec import Struct

from .bounded_process import ProcessFailed, WroteTooMuch, run_bounded
from .providers import is_absent
from .reviews import Kind, Review

GIT_S_MAX = 30.0
DIFF_BYTES_MAX = 4_000_000
FILE_BYTES_MAX = 400_000
"""Larger files are generated, or data: a reviewer has nothing to say about them."""
CHANGE_BYTES_MAX = 8_000_000
FILES_MAX = 300
"""People do not read a change of more files either, and each costs two processes."""

_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color")
_HUNK = re.compile(rb"^@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_NOT_FILES = {"120000": "a symbolic link", "160000": "a submodule"}
_EMPTY_TREE = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""The hash of a folder without files, by the length of the repository's hashes."""


class Unreviewable(Exception):
    """The change cannot be reviewed, and trying again would not help."""


class NotYet(Exception):
    """The repository does not have the commits. A later fetch may bring them."""


class ChangedFile(Struct, frozen=True, kw_only=True):
    """One file of a change."""

    path: str
    content: bytes | None = None
    """None for a file that was deleted or not read."""
    lines: frozenset[int] = frozenset()
    """Numbers of the lines that are new or different."""
    removed: int = 0
    """How many lines are gone or different."""
    not_read: str = ""
    """Why the file was not read."""


class Change(Struct, frozen=True, kw_only=True):
    """What a reviewer gets: the files that differ between two commits."""

    repository: str
    title: str
    base: str
    head: str
    files: tuple[ChangedFile, ...]


def read_change(repositories: Path, review: Review) -> Change:
    """Returns the change that the review is about. Raises NotYet or Unreviewable."""
    git = _Git(_folder_of(repositories, review.repository))
    base = _base_of(git, review)
    listing = git.run(*_DIFF, "--raw", "--no-abbrev", "-z", base, review.head, "--", output_max=DIFF_BYTES_MAX)
    fields = listing.split(b"\0")[:-1]
    entries = list(zip(fields[::2], fields[1::2], strict=True))
    if len(entries) > FILES_MAX:
        raise Unreviewable(f"the change has {len(entries)} files; {FILES_MAX} at most are reviewed")
    files: list[ChangedFile] = []
    left = CHANGE_BYTES_MAX
    for description, path in entries:
        files.append(_read_file(git, description.decode(), path, bytes_max=min(left, FILE_BYTES_MAX)))
        left -= len(files[-1].content or b"")
    return Change(repository=review.repository, title=review.title, base=base, head=review.head, files=tuple(files))


class _Git:
    def __init__(self, folder: Path) -> None:
        self._command = ["git", f"--git-dir={folder}", "-c", "core.attributesFile=/dev/null"]

    def run(self, *arguments: str, output_max: int = 10_000) -> bytes:
        command = [*self._command, *arguments]
        return run_bounded(command, seconds=GIT_S_MAX, output_max=output_max, env=_ENVIRONMENT)

    def commit(self, revision: str) -> str | None:
        """Returns the hash of the commit, or None if it is not there."""
        try:
            return (
                self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
                .decode()
                .strip()
            )
        except ProcessFailed:
            return None

    def fork_point(self, one: str, other: str) -> str | None:
        """Returns the newest commit that both have in their history, or None if there is none."""
        try:
            return self.run("merge-base", one, other).decode().strip()
        except ProcessFailed:
            return None


def _folder_of(repositories: Path, name: str) -> Path:
    """Returns the folder of a repository: `<name>.git` if it is bare, as mirrors are, otherwise `<name>/.git`."""
    for folder in (repositories / f"{name}.git", repositories / name / ".git"):
        if folder.is_dir() and folder.resolve().is_relative_to(repositories.resolve()):
            return folder
    raise Unreviewable(f"there is no repository {name} here")


def _base_of(git: _Git, review: Review) -> str:
    """Returns the commit to compare with. A pull request is compared with the commit where it left its target, so that
    what others did to the target meanwhile is not reviewed; a push with what the branch was before."""
    if git.commit(review.head) is None:
        raise NotYet(f"commit {review.head[:12]} is not in the repository yet")
    if review.kind is Kind.PULL:
        target = git.commit(review.base)
        if target is None:
            raise NotYet(f"{review.base[:60]} is not in the repository yet")
        return git.fork_point(target, review.head) or target
    if not is_absent(review.base) and git.commit(review.base):
        return review.base
    # A new branch, or what it was before is gone: its part that the default branch does not have.
    default = git.commit("HEAD")
    fork = git.fork_point(default, review.head) if default else None
    return fork if fork and fork != review.head else _EMPTY_TREE[len(review.head)]


def _read_file(git: _Git, description: str, name: bytes, *, bytes_max: int) -> ChangedFile:
    """Reads one line of `git diff --raw`: `:<old mode> <new mode> <old hash> <new hash> <status>`."""
    _, mode, old, new, status = description.removeprefix(":").split(" ")
    path = name.decode(errors="backslashreplace")
    if not path.isprintable() or {"", ".", "..", ".git"} & {part.lower() for part in path.split("/")}:
        return ChangedFile(path=ascii(path)[1:-1], not_read="its name is not one of a source file")
    if mode in _NOT_FILES:
        return ChangedFile(path=path, not_read=f"it is {_NOT_FILES[mode]}")
    if status == "D":
        return ChangedFile(path=path)
    try:
        content = git.run("cat-file", "blob", new, output_max=bytes_max)
        lines, removed = _changed_lines(git, old, new, content)
    except WroteTooMuch:
        return ChangedFile(path=path, not_read="it is too large")
    except ProcessFailed:
        return ChangedFile(path=path, not_read="git could not read it")
    return ChangedFile(path=path, content=content, lines=lines, removed=removed)


def _changed_lines(git: _Git, old: str, new: str, content: bytes) -> tuple[frozenset[int], int]:
    if is_absent(old):
        return frozenset(range(1, content.count(b"\n") + 2)), 0
    diff = git.run(*_DIFF, "--unified=0", "--text", old, new, "--", output_max=DIFF_BYTES_MAX)
    lines: set[int] = set()
    removed = 0
    for gone, first, count in _HUNK.findall(diff):
        lines.update(range(int(first), int(first) + int(count or 1)))
        removed += int(gone or 1)
    return frozenset(lines), removed
