"""Rules about the shape of the code: sizes, names, docstrings, broad handlers, and forbidden texts."""

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tidy.conftest import Source

FILE_LINES_MAX, FUNCTION_LINES_MAX, POSITIONAL_MAX = 400, 60, 4
VAGUE = {"utils", "util", "common", "helpers", "helper", "services", "service", "controllers", "controller",
         "repository", "repositories", "manager", "managers", "misc", "impl"}  # fmt: skip

# Functions with more positional parameters, and why.
MANY_POSITIONAL = {
    "domain/lifecycle.py _moved": "defaults of keyword-only parameters cost as much as the rest of the call",
    "server/routes.py _route": "a row of the table of routes, read by its columns",
    "server/webhooks/connect.py connect_tcp": "httpcore's interface",
    "server/webhooks/streams.py connect_tcp": "the same",
}

# Class names that exist twice, because it is the same idea at another level.
SAME_IDEA = {
    "Backoff": "of a task, and of a request on the wire",
    "Claim": "what a worker requests of the queue, and the same on the wire",
    "EffectivePolicy": "as the queue works with it, and as programs read it: with seconds and datetimes",
    "Page": "of the one and of the other",
    "QueuePolicy": "as it is stored, and as programs set and read it",
    "Task": "the record, and the task as programs see it",
    "WorkerStatus": "as the queue knows it, and as programs read it",
}

# Where every exception may be caught, and why.
BROAD = {
    "cli/worker.py": "the import of a user's program: what it raises is shown, without the steps of the import",
    "store/rocksdb/database.py": "rocksdict raises bare Exceptions; they are translated here",
    "store/rocksdb/group_commit.py": "a failed write stops the store, whatever it raised",
    "store/rocksdb/shard.py": "half of a change may be in the write buffer: the store stops, whatever was raised",
    "pipeline/worker/claim_loop.py": "a user's function may raise anything; its tasks are nacked with the reason",
    "embedded/aio.py": "the top of the sweepers: whatever ended them, the store is closed and says so",
    "sdk/worker/execution.py": "the top of every handler: what it raises is its task's, never the worker's",
    "server/app.py": "the top of every request: an unexpected error is logged and hidden",
    "server/webhooks/attempts.py": "the top of every delivery: what a receiver provokes ends its own delivery only",
    "sdk/batcher.py": "the top of a sender: the calls that wait for the batch get the error, and the next one is sent",
}
SILENT = {
    "pipeline/worker/claim_loop.py",
    "sdk/batcher.py",
    "sdk/worker/batches.py",
    "sdk/worker/execution.py",
    "sdk/worker/hooks.py",
    "server/app.py",
    "server/webhooks/attempts.py",
    "store/rocksdb/group_commit.py",
}
"""Those of them that pass the error to the waiting call instead of raising it again."""

# Concatenated, so that this file does not contain the forbidden texts.
UNDONE = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]))
REGISTRIES = [
    "pypi" + ".org",
    "python" + "hosted",
    "npm" + "js",
    "crates" + ".io",
    "ana" + "conda.org",
    "repo1." + "maven",
]
THIS_MACHINE = re.compile(r"(?<![\w.~/-])/(?:" + "wo" + "rk|ro" + "ot)/")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: "Source") -> list[Function]:
    return [node for node in ast.walk(source.tree) if isinstance(node, Function)]


def positional(function: Function) -> list[str]:
    names = [argument.arg for argument in function.args.posonlyargs + function.args.args]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def handlers(source: "Source", *kinds: str) -> list[ast.ExceptHandler]:
    """Returns the handlers that catch one of these kinds, by name; a bare `except` is a `BaseException`."""
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if {"BaseException" if kind is None else ast.unparse(kind) for kind in caught} & set(kinds):
                found.append(node)
    return found


def test_files_stay_short(sources: "list[Source]") -> None:
    lines = {source.name: source.text.count("\n") for source in sources}
    assert {name: number for name, number in lines.items() if number > FILE_LINES_MAX} == {}


def test_functions_stay_short(sources: "list[Source]") -> None:
    found = [
        f"{source.name}:{function.lineno} {function.name}"
        for source in sources
        for function in functions(source)
        if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not found


def test_functions_take_few_positional_parameters(sources: "list[Source]") -> None:
    found = {
        f"{source.name} {function.name}"
        for source in sources
        if not source.name.startswith("cli/")  # Typer turns them into options
        for function in functions(source)
        if len(positional(function)) > POSITIONAL_MAX
    }
    assert found == set(MANY_POSITIONAL)


def test_no_file_or_folder_has_a_name_that_says_nothing(sources: "list[Source]") -> None:
    assert [source.name for source in sources if VAGUE & set(Path(source.name).with_suffix("").parts)] == []


def test_no_class_name_stands_for_two_things(sources: "list[Source]") -> None:
    places: dict[str, list[str]] = {}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(source.name)
    assert {name for name, files in places.items() if len(files) > 1} == set(SAME_IDEA)


def test_every_file_opens_with_a_sentence(sources: "list[Source]") -> None:
    openings = {source.name: ast.get_docstring(source.tree) or "" for source in sources}
    assert [name for name, opening in openings.items() if not opening] == []
    assert [
        name for name, opening in openings.items() if not opening.splitlines()[0].rstrip().endswith((".", ":"))
    ] == []


def test_everything_is_caught_only_where_that_was_thought_through(sources: "list[Source]") -> None:
    assert {source.name for source in sources if handlers(source, "Exception")} == set(BROAD)


def test_what_catches_everything_raises_again(sources: "list[Source]") -> None:
    silent = [
        f"{source.name}:{handler.lineno}"
        for source in sources
        if source.name not in SILENT
        for handler in handlers(source, "Exception", "BaseException")
        if not any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    ]
    assert not silent


def test_nothing_is_left_undone(sources: "list[Source]") -> None:
    found = [
        f"{source.name}:{number}"
        for source in sources
        for number, line in enumerate(source.text.splitlines(), 1)
        if UNDONE.search(line)
    ]
    assert not found


@pytest.mark.parametrize("registry", REGISTRIES)
def test_no_file_names_a_package_registry(project_files: list[Path], registry: str) -> None:
    assert [path for path in project_files if registry in path.read_text()] == []


def test_no_file_knows_where_it_lies_on_this_machine(project_files: list[Path]) -> None:
    assert [path for path in project_files if THIS_MACHINE.search(path.read_text())] == []


def test_the_rules_look_at_documents_and_at_code(project_files: list[Path]) -> None:
    assert {".py", ".md", ".toml"} <= {path.suffix for path in project_files}
