"""What is read from a git repository that strangers write to, and what reviewers make of it."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest
from examples.code_review import git_changes
from examples.code_review.bounded_process import ProcessFailed, TookTooLong, WroteTooMuch, run_bounded
from examples.code_review.git_changes import Change, ChangedFile, NotYet, Unreviewable, read_change
from examples.code_review.model_reviewer import ModelReviewer, prompt
from examples.code_review.reviewers import (
    FINDINGS_MAX,
    Reviewer,
    RuffReviewer,
    SizeReviewer,
    UnreadReviewer,
    load_reviewers,
    review_all,
)
from examples.code_review.reviews import Finding, Kind, Review, Status
from examples.code_review.sample_repository import GitRepository, make_repository
from examples.code_review.sample_webhooks import ABSENT
from examples.code_review.settings import read_settings
from tests.server.server_process import eventually

ALL: list[Reviewer] = [RuffReviewer(), SizeReviewer(), UnreadReviewer()]


@pytest.fixture
def git(tmp_path: Path) -> GitRepository:
    return make_repository(tmp_path / "repositories" / "acme" / "shop")


def review(base: str, head: str, kind: Kind = Kind.PUSH, repository: str = "acme/shop") -> Review:
    return Review(
        id=1, provider="github", delivery="d", kind=kind, repository=repository, subject="s", base=base, head=head,
        title="Change", author="ada", url="", status=Status.RUNNING, attempts=1, fencing=1, error="", received_ms=0,
        started_ms=0, ended_ms=None, findings=0,
    )  # fmt: skip


def change_of(git: GitRepository, base: str, head: str, kind: Kind = Kind.PUSH) -> Change:
    return read_change(git.folder.parents[1], review(base, head, kind))


def found(git: GitRepository, base: str, head: str) -> list[tuple[str, int, str]]:
    return [(each.file, each.line, each.rule) for each in review_all(ALL, change_of(git, base, head))]


def raw_commit(git: GitRepository, entries: list[tuple[str, str, bytes]]) -> str:
    """Returns a commit whose tree has these modes, hashes and names, as no git command would make it."""
    lines = b"".join(f"{mode} blob {hash_}\t".encode() + name + b"\0" for mode, hash_, name in entries)
    source = git.folder / "tree"
    source.write_bytes(lines)
    with source.open("rb") as stdin:
        tree = run_in(git, "mktree", "-z", "--missing", stdin=stdin)
    source.unlink()
    return git.git("commit-tree", tree, "-m", "Raw")


def run_in(git: GitRepository, *arguments: str, stdin: object) -> str:
    import subprocess  # noqa: PLC0415

    command = ["git", "-C", str(git.folder), *arguments]
    return subprocess.run(command, stdin=stdin, check=True, capture_output=True, text=True).stdout.strip()  # type: ignore[call-overload,no-any-return]


def blob(git: GitRepository, content: str) -> str:
    path = git.folder / "blob"
    path.write_text(content)
    try:
        return git.git("hash-object", "-w", str(path))
    finally:
        path.unlink()


def test_only_the_changed_lines_are_reviewed(git: GitRepository) -> None:
    _, first = git.commit("main", {"a.py": "import os\n\nx = 1\ny = 2\n"}, "One")
    _, second = git.commit("main", {"a.py": "import os\n\nx = 1\nimport sys\ny = 3\nz = w\n"}, "Two")
    assert found(git, first, second) == [("a.py", 4, "F401"), ("a.py", 6, "F821")]
    [file] = change_of(git, first, second).files
    assert (file.lines, file.removed) == (frozenset({4, 5, 6}), 1)


def test_a_syntax_error_is_found_wherever_it_shows(git: GitRepository) -> None:
    _, first = git.commit("main", {"a.py": "x = (\n    1,\n)\n\n\ny = 1\n"}, "One")
    _, second = git.commit("main", {"a.py": "x = (\n    1,\n\n\n\ny = 1\n"}, "Two")
    assert [rule for _, _, rule in found(git, first, second)][:1] == ["invalid-syntax"]


def test_a_pull_request_is_compared_with_where_it_left_its_target(git: GitRepository) -> None:
    _, first = git.commit("main", {"a.py": "x = 1\n"}, "One")
    _, head = git.commit("topic", {"b.py": "import os\n"}, "Topic")
    _, moved = git.commit("main", {"c.py": "import sys\n"}, "Others went on")
    assert [file.path for file in change_of(git, moved, head, Kind.PULL).files] == ["b.py"]
    assert [file.path for file in change_of(git, "refs/heads/main", head, Kind.PULL).files] == ["b.py"]
    assert change_of(git, moved, head, Kind.PULL).base == first


def test_a_new_branch_is_compared_with_where_it_left_the_default_branch(git: GitRepository) -> None:
    _, first = git.commit("main", {"a.py": "x = 1\n"}, "One")
    assert [file.path for file in change_of(git, ABSENT, first).files] == ["a.py"]
    _, head = git.commit("topic", {"b.py": "y = 1\n"}, "Topic")
    git.git("checkout", "--quiet", "main")
    assert [file.path for file in change_of(git, ABSENT, head).files] == ["b.py"]
    assert [file.path for file in change_of(git, "9" * 40, head).files] == ["b.py"], "after a forced push"


def test_a_bare_mirror_is_read_as_well(git: GitRepository, tmp_path: Path) -> None:
    _, first = git.commit("main", {"a.py": "import os\n"}, "One")
    mirror = tmp_path / "mirrors" / "acme" / "shop.git"
    git.git("clone", "--quiet", "--mirror", str(git.folder), str(mirror))
    assert [file.path for file in read_change(tmp_path / "mirrors", review(ABSENT, first)).files] == ["a.py"]


def test_a_commit_that_is_not_there_yet_is_worth_another_try(git: GitRepository) -> None:
    _, first = git.commit("main", {"a.py": "x = 1\n"}, "One")
    for base, head, kind in [(first, "9" * 40, Kind.PUSH), ("refs/heads/gone", first, Kind.PULL)]:
        with pytest.raises(NotYet):
            change_of(git, base, head, kind)


@pytest.mark.parametrize("name", ["acme/other", "../outside", "../../etc", "acme/link"])
def test_a_repository_that_is_not_ours_is_not_read(git: GitRepository, tmp_path: Path, name: str) -> None:
    _, first = git.commit("main", {"a.py": "x = 1\n"}, "One")
    make_repository(tmp_path / "outside")
    (tmp_path / "repositories" / "acme" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(Unreviewable, match="no repository"):
        read_change(tmp_path / "repositories", review(ABSENT, first, repository=name))


HOSTILE_NAMES = [
    "--output=x.py",
    "-rf.py",
    "$(touch owned).py",
    "`touch owned`.py",
    "a;touch owned.py",
    "a|b.py",
    "* ?.py",
]


def test_file_names_that_a_shell_or_an_option_parser_would_take_seriously_do_nothing(
    git: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, first = git.commit("main", dict.fromkeys(HOSTILE_NAMES, "import os\n"), "One")
    assert found(git, ABSENT, first) == [(name, 1, "F401") for name in sorted(HOSTILE_NAMES)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repositories"]


def test_names_that_are_none_of_a_source_file_are_refused_and_named(git: GitRepository) -> None:
    _, first = git.commit("main", {"a.py": "x = 1\n"}, "One")
    content = blob(git, "import os\n")
    names = [b"new\nline.py", b"bell\x07.py", "right\u202eto-left.py".encode()]
    head = raw_commit(git, [("100644", content, name) for name in names])
    files = {file.path: file for file in change_of(git, first, head).files if file.path != "a.py"}
    assert set(files) == {r"new\nline.py", r"bell\x07.py", r"right\u202eto-left.py"}
    assert all(file.content is None and "name" in file.not_read for file in files.values())
    assert [rule for _, _, rule in found(git, first, head)] == ["not-reviewed"] * 3


def test_a_name_that_is_not_utf8_can_be_stored_and_shown(git: GitRepository) -> None:
    content = blob(git, "import os\n")
    head = raw_commit(git, [("100644", content, b"caf\xe9.py")])
    assert found(git, ABSENT, head) == [("caf\\xe9.py", 1, "F401")]


def test_links_submodules_and_large_files_are_not_read_and_named(
    git: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_changes, "FILE_BYTES_MAX", 1000)
    (git.folder / "secret.py").symlink_to("/etc/passwd")
    git.commit("main", {"large.py": "import os\n" * 200, "small.py": "import os\n"}, "One")
    git.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    git.git("commit", "--quiet", "--message", "Module")
    change = change_of(git, ABSENT, git.git("rev-parse", "HEAD"))
    assert {file.path: file.not_read for file in change.files} == {
        "large.py": "it is too large",
        "module": "it is a submodule",
        "secret.py": "it is a symbolic link",
        "small.py": "",
    }
    assert {file.path for file in change.files if file.content} == {"small.py"}


def test_a_change_of_too_many_files_is_refused(git: GitRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_changes, "FILES_MAX", 3)
    _, first = git.commit("main", {f"{number}.py": "x = 1\n" for number in range(4)}, "One")
    with pytest.raises(Unreviewable, match="4 files"):
        change_of(git, ABSENT, first)


def test_a_deleted_file_is_no_reason_for_anything(git: GitRepository) -> None:
    _, first = git.commit("main", {"a.py": "import os\n", "b.py": "x = 1\n"}, "One")
    (git.folder / "a.py").unlink()
    _, second = git.commit("main", {}, "Two")
    assert found(git, first, second) == []


def test_nothing_that_is_reviewed_is_executed_or_obeyed(git: GitRepository, tmp_path: Path) -> None:
    """Files that Python, ruff or git would run or read as configuration, if they were given the chance."""
    owned = tmp_path / "owned"
    attack = f"import pathlib\n\npathlib.Path({str(owned)!r}).touch()\n"
    names = ["ruff.py", "json.py", "sitecustomize.py", "ruff/__main__.py", "conftest.py", "setup.py", "__init__.py"]
    _, first = git.commit("main", {"a.py": "x = 1\n"}, "One")
    _, head = git.commit(
        "main",
        {
            **dict.fromkeys(names, attack),
            "ruff.toml": 'lint.ignore = ["ALL"]\nextend-exclude = ["*"]\n',
            "pyproject.toml": '[tool.ruff]\nexclude = ["*"]\n',
            ".gitattributes": "*.py diff=evil filter=evil\n",
            ".gitconfig": f'[diff "evil"]\n\tcommand = touch {owned}\n\ttextconv = touch {owned}\n',
            "defect.py": "import os\n",
        },
        "Two",
    )
    assert found(git, first, head) == [("defect.py", 1, "F401")]
    assert not owned.exists()


def test_the_configuration_of_this_machine_has_no_effect(
    git: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = tmp_path / "owned"
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[diff]\n\texternal = touch {owned}\n[not a line of configuration")
    (home / "ruff.toml").write_text('extend-exclude = ["*"]\n')
    monkeypatch.setattr("tempfile.tempdir", str(home))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {owned}")
    _, first = git.commit("main", {"a.py": "x = 1\n"}, "One")
    _, second = git.commit("main", {"a.py": "import os\n"}, "Two")
    assert found(git, first, second) == [("a.py", 1, "F401")]
    assert not owned.exists()


def test_a_large_change_is_named_with_its_largest_file() -> None:
    files = (
        ChangedFile(path="a.py", content=b"", lines=frozenset(range(300)), removed=50),
        ChangedFile(path="b.py", content=b"", lines=frozenset(range(60))),
    )
    change = Change(repository="r", title="t", base="b", head="h", files=files)
    [finding] = SizeReviewer().review(change)
    assert finding.rule == "large-change"
    assert "410 lines changed, 350 of them in a.py" in finding.message
    assert SizeReviewer(lines_max=410).review(change) == []


def test_findings_are_bounded_and_the_rest_is_counted(git: GitRepository) -> None:
    _, first = git.commit(
        "main", {"a.py": "".join(f"import a{number}\n" for number in range(FINDINGS_MAX + 20))}, "One"
    )
    findings = review_all([RuffReviewer()], change_of(git, ABSENT, first))
    assert len(findings) == FINDINGS_MAX + 1
    assert findings[0].message.startswith(f"{FINDINGS_MAX + 20} findings")


def test_the_reviewers_of_the_settings_are_loaded_by_name() -> None:
    loaded = load_reviewers(read_settings({}).reviewers)
    assert [type(reviewer) for reviewer in loaded] == [RuffReviewer, SizeReviewer, UnreadReviewer]


def test_the_reviewer_of_the_readme_finds_what_it_says(git: GitRepository) -> None:
    readme = (Path(git_changes.__file__).parent / "README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    _, first = git.commit("main", {"a.py": "breakpoint()\nx = 1\n"}, "One")
    _, second = git.commit("main", {"a.py": "breakpoint()\nx = 1\nbreakpoint()\n"}, "Two")
    findings = review_all([names["LeftoverReviewer"]()], change_of(git, first, second))
    assert [(each.file, each.line, each.rule) for each in findings] == [("a.py", 3, "leftover")]


MODEL = """
import re, sys
question = sys.stdin.read()
path, line = re.search(r"File: (.*)\\n(\\d+): password", question).groups()
print("Here is what I found:")
print('[{"file": "%s", "line": %s, "message": "A password."},' % (path, line))
print('{"file": "made-up.py", "line": 1, "message": "?"}]')
"""


def change(content: bytes = b"x = 1\npassword = 'secret'\n") -> Change:
    files = (ChangedFile(path="a.py", content=content, lines=frozenset({2})),)
    return Change(repository="r", title="Change", base="b", head="h", files=files)


def test_a_language_model_is_asked_about_the_changed_lines_and_believed_about_known_files_only() -> None:
    reviewer = ModelReviewer([sys.executable, "-c", MODEL])
    assert reviewer.review(change()) == [Finding("a.py", 2, "model", "A password.")]
    assert "x = 1" not in prompt(change())


@pytest.mark.parametrize(
    "answer", ["sorry", "[1]", '[{"file": "a.py"}]', '[{"file": "a.py", "line": -1, "message": ""}]']
)
def test_an_answer_of_a_model_that_is_no_list_of_findings_is_a_failed_try(answer: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        ModelReviewer([sys.executable, "-c", f"print({answer!r})"]).review(change())


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_program_is_bounded_in_time_and_output_and_its_children_end_with_it(tmp_path: Path) -> None:
    def run(code: str, seconds: float = 20, output_max: int = 100) -> bytes:
        command = [sys.executable, "-c", code]
        return run_bounded(command, seconds=seconds, output_max=output_max, env=dict(os.environ), given=b"in")

    assert run("print(input())") == b"in\n"
    with pytest.raises(ProcessFailed, match="ended with 3: oh no"):
        run("import sys; sys.stderr.write('oh no'); sys.exit(3)")
    with pytest.raises(WroteTooMuch):
        run("while True: print('x' * 1000)")
    pid = tmp_path / "pid"
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text(f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(99)\n")
    child = f"[sys.executable, {str(sleeper)!r}]"
    with pytest.raises(TookTooLong):
        run(f"import subprocess, sys; subprocess.run({child})", 1)
    with pytest.raises(TookTooLong):  # it ends, and its child keeps the output open
        run(f"import subprocess, sys; subprocess.Popen({child})", 5)
    eventually(lambda: not is_running(int(pid.read_text())))
    with pytest.raises(TookTooLong):  # it closes its output, and goes on
        run("import os, time; os.close(1); time.sleep(99)", 1)
