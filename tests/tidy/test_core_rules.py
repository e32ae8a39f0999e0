"""Rules that keep the core pure: time is an argument, and one file decides how a task moves."""

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from codeq.domain.task import Task
from codeq.store.interface import Store

if TYPE_CHECKING:
    from tests.tidy.conftest import Source

WALL_CLOCK = {
    "time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.clock_gettime", "datetime.now",
    "datetime.utcnow", "datetime.today", "date.today", "datetime.datetime.now", "datetime.datetime.utcnow",
    "datetime.date.today",
}  # fmt: skip
CHANCE = {"random", "secrets", "uuid"}
VERBS_MAX = 17
DECIDED = set(Task.__struct_fields__) - {"version", "created_ms", "updated_ms", "error", "max_attempts", "backoff"}
"""Fields that only a task has, so that code that sets one sets it on a task."""
TASKS = {"task", "before", "after", "held", "claimed", "current"}
"""Variable names of tasks."""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    return ((dotted(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields every imported name in full: `time`, `time.time_ns`, `codeq.domain.task.Task`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_core_never_reads_the_wall_clock(sources: "list[Source]") -> None:
    found = [
        f"{source.name}:{node.lineno} {dotted(node)}"
        for source in sources
        if source.is_core
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and dotted(node) in WALL_CLOCK
    ]
    found += [
        f"{source.name} imports {name}"
        for source in sources
        if source.is_core
        for name in imported(source.tree)
        if name in WALL_CLOCK
    ]
    assert not found


def test_the_core_is_given_its_randomness(sources: "list[Source]") -> None:
    core = [source for source in sources if source.is_core]
    found = [
        f"{source.name} imports {name}"
        for source in core
        for name in imported(source.tree)
        if name.split(".")[0] in CHANCE or name == "os.urandom"
    ]
    found += [
        f"{source.name}:{call.lineno}" for source in core for name, call in calls(source.tree) if name == "os.urandom"
    ]
    assert not found


def test_only_the_lifecycle_makes_a_task(sources: "list[Source]") -> None:
    found = [
        f"{source.name}:{call.lineno}"
        for source in sources
        if source.name != "domain/lifecycle.py"
        for name, call in calls(source.tree)
        if name == "Task" or name.endswith(".task.Task")
    ]
    assert not found


def test_only_the_lifecycle_changes_a_task(sources: "list[Source]") -> None:
    found = [
        f"{source.name}:{call.lineno}"
        for source in sources
        if source.name != "domain/lifecycle.py"
        for name, call in calls(source.tree)
        if name.split(".")[-1] == "replace"
        and call.args
        and (dotted(call.args[0]).split(".")[-1] in TASKS or {keyword.arg for keyword in call.keywords} & DECIDED)
    ]
    assert not found


def test_a_frozen_value_is_set_by_the_codec_alone_and_only_its_version(sources: "list[Source]") -> None:
    users = [source for source in sources if "force_setattr" in source.text or "object.__setattr__" in source.text]
    assert [source.name for source in users] == ["store/codec.py"]
    assert users[0].text.count("force_setattr") == 1, "it is `codec.set_field`"
    touched = [
        call.args[1].value if isinstance(call.args[1], ast.Constant) else ast.unparse(call.args[1])
        for source in sources
        for name, call in calls(source.tree)
        if name.split(".")[-1] == "set_field"
    ]
    assert set(touched) == {"version"}


def test_engines_never_name_a_status(sources: "list[Source]") -> None:
    found = [
        f"{source.name}:{node.lineno} {dotted(node)}"
        for source in sources
        if source.name.startswith(("store/rocksdb/", "store/redis/", "store/sharded"))
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and dotted(node).startswith("Status.")
    ]
    assert not found


def test_the_store_has_few_verbs() -> None:
    verbs = [name for name, member in vars(Store).items() if callable(member) and not name.startswith("_")]
    assert 10 < len(verbs) <= VERBS_MAX, verbs


def test_keys_are_built_in_one_file(sources: "list[Source]") -> None:
    found = [
        f"{source.name}:{node.lineno} {node.value!r}"
        for source in sources
        if source.name.startswith("store/rocksdb/") and source.name != "store/rocksdb/keys.py"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and node.value[1:2] == b"/"
    ]
    assert not found


@pytest.mark.parametrize("module", ["time", "asyncio", "os", "threading", "pathlib", "rocksdict"])
def test_the_domain_does_no_input_and_no_output(sources: "list[Source]", module: str) -> None:
    found = [
        source.name
        for source in sources
        if source.name.startswith("domain/")
        for name in imported(source.tree)
        if name.split(".")[0] == module
    ]
    assert not found


def test_the_server_calls_no_store_past_the_use_cases(sources: "list[Source]") -> None:
    found = [
        f"{source.name}:{node.lineno} {dotted(node)}"
        for source in sources
        if source.name.startswith("server/")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and dotted(node).endswith("core.store")
    ]
    assert not found


def test_a_task_is_written_out_by_position_where_it_is_made_and_where_it_moves_and_nowhere_else(
    sources: "list[Source]",
) -> None:
    found = [
        function.name
        for source in sources
        for function in ast.walk(source.tree)
        if isinstance(function, ast.FunctionDef)
        for name, call in calls(function)
        if name == "Task" and call.args
    ]
    assert found == ["enqueue", "_moved"]


def test_use_cases_commit_changes_of_stored_tasks_through_the_core(sources: "list[Source]") -> None:
    """`Core.commit` creates the deliveries of tasks with a webhook. New tasks have none to create."""
    found = [
        f"{source.name}:{call.lineno}"
        for source in sources
        if source.name.startswith("usecases/")
        for name, call in calls(source.tree)
        if name.endswith("store.commit") and source.name not in ("usecases/core.py", "usecases/enqueue.py")
    ]
    assert not found
