"""The drawn tree of errors equals the class hierarchy, and each error has its own code."""

import ast
import re
from inspect import getmembers, isclass
from pathlib import Path

import codeq
from codeq.domain import errors
from codeq.domain.errors import CodeqError

LINE = re.compile(r"^(?P<lead>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: {2,}(?P<code>[a-z-]+)(?= {2}))?(?: {2,}(?P<when>\S.*))?$")


def classes() -> dict[str, type[CodeqError]]:
    return {name: kind for name, kind in getmembers(errors, isclass) if issubclass(kind, CodeqError)}


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """Returns per name in the drawing: its parent and its code."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").split("\n\n", 1)[1].strip().splitlines():
        found = LINE.match(line)
        assert found, f"this line of the tree cannot be read: {line!r}"
        depth = len(found["lead"]) // 4
        above[depth:] = [found["name"]]
        tree[found["name"]] = (above[depth - 1] if depth else None, found["code"])
    return tree


def raised() -> set[str]:
    """Returns the names of all errors that codeQ's own code raises."""
    calls = (
        node.func.id
        for path in Path(codeq.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )
    return set(calls) & set(classes())


def test_the_drawing_lists_exactly_the_classes() -> None:
    assert set(drawn()) == set(classes())


def test_every_class_stands_below_its_parent() -> None:
    parents = {name: kind.__base__.__name__ for name, kind in classes().items() if kind.__base__}
    assert {name: parent or "Exception" for name, (parent, _) in drawn().items()} == parents


def test_every_code_in_the_drawing_is_the_code_of_the_class() -> None:
    codes = {name: code for name, (_, code) in drawn().items() if code}
    assert codes == {name: classes()[name].code for name in codes}
    assert len(codes) > 12


def test_only_groups_of_errors_are_drawn_without_a_code() -> None:
    parents = {parent for parent, _ in drawn().values()}
    assert {name for name, (_, code) in drawn().items() if code is None} <= parents


def test_every_error_that_is_raised_shows_its_code_in_the_drawing() -> None:
    assert {name for name in raised() if drawn()[name][1] is None} == set()


def test_every_class_sets_a_code_and_no_two_share_one() -> None:
    assert all("code" in vars(kind) for kind in classes().values())
    assert len({kind.code for kind in classes().values()}) == len(classes())


def test_codes_are_words_that_travel_well() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.code) for kind in classes().values())
