"""The page of the package, made of docstrings and signatures of its public names."""

import enum
import inspect
import re
from typing import Any

import msgspec

import codeq
from codeq import testing
from codeq.cli.pages.sentences import field_notes, paragraphs, table
from codeq.domain.requests import BulkResult, Page
from codeq.sdk.batcher import AsyncBatcher, AsyncTicket, Batcher, Ticket
from codeq.sdk.verbs import Verbs
from codeq.wire.events import Event, EventPage

INTRODUCTION = """# The Python package

`import codeq` has all of these but the ones of `codeq.testing`. Errors are in `codeq.errors`,
[on a page of their own](errors.md). Times are seconds, or `timedelta`. This page is made by `codeq reference sdk`.

{contents}
"""

VERBS = """`Client` and `Queue` have them as plain calls for any thread; `AsyncClient` and `AsyncQueue` have them
awaited. On a server, `replay*`, `purge*`, `cleanup`, `policy`, `set_policy`, `pause`, `resume` and `list(dead=True)`
need an admin's token, and `claim` and what follows it a worker's.
"""

SECTIONS: dict[str, tuple[Any, ...]] = {
    "Where the queues are": (
        codeq.Client,
        codeq.AsyncClient,
        codeq.open,
        codeq.open_async,
        codeq.Queue,
        codeq.AsyncQueue,
        codeq.restore,
    ),
    "Batches": (codeq.new_tasks, codeq.NewTask, Batcher, Ticket, AsyncBatcher, AsyncTicket),
    "Workers": (
        codeq.Worker,
        codeq.Retry,
        codeq.Fail,
        codeq.RunningJob,
        codeq.current_job,
        codeq.Interrupted,
    ),
    "What calls answer": (
        codeq.Task,
        codeq.Job,
        codeq.TaskDetails,
        codeq.ReleaseResult,
        codeq.QueueInfo,
        Page,
        BulkResult,
        Event,
        EventPage,
        codeq.TaskFailed,
        codeq.WaitTimeout,
        codeq.Status,
        codeq.Move,
    ),
    "Rules of a queue": (codeq.QueuePolicy, codeq.Backoff, codeq.BackoffKind, codeq.OnExpiry),
    "Tests": (testing.open, testing.QueueForTests),
}
ELSEWHERE = {"CodeqError", "errors"}
"""Public names that have no entry here."""

WIDTH = 100
_VERB_NAMES = {name for name in dir(Verbs) if not name.startswith("_")}


def page() -> str:
    titles = ["Verbs", *SECTIONS]
    contents = "\n".join(f"- [{title}](#{title.lower().replace(' ', '-')})" for title in titles)
    verbs = [_entry(name, member, "####") for name, member in vars(Verbs).items() if name in _VERB_NAMES]
    parts = [INTRODUCTION.format(contents=contents), "## Verbs\n", VERBS, *verbs]
    for title, things in SECTIONS.items():
        parts += [f"## {title}\n", *[_thing(thing) for thing in things]]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def names() -> set[str]:
    """The public names that have an entry."""
    return {thing.__name__ for things in SECTIONS.values() for thing in things}


def _thing(thing: Any) -> str:
    if not isinstance(thing, type):
        home = "codeq.testing" if thing.__module__ == testing.__name__ else "codeq"
        return _entry(f"{home}.{thing.__name__}", thing, "###")
    if issubclass(thing, enum.Enum):
        members = ", ".join(f"`{member.name}`" for member in thing)
        return f"### {thing.__name__}\n\n{_spaced(thing)}One of {members}.\n"
    if issubclass(thing, msgspec.Struct):
        return "\n".join([f"### {thing.__name__}\n", _spaced(thing) + _fields(thing), *_members(thing)])
    made = thing.__init__.__doc__ if "__init__" in vars(thing) else None
    signature = _signature(thing.__name__, thing) if "__init__" in vars(thing) and _is_made_by_users(thing) else ""
    extra = f"{' '.join(made.split())}\n" if made and signature else ""
    return "\n".join(filter(None, [f"### {thing.__name__}\n", _said(thing), signature, extra, *_members(thing)]))


def _is_made_by_users(thing: type) -> bool:
    return thing in (codeq.Client, codeq.AsyncClient, codeq.Worker, codeq.Retry, codeq.Fail)


def _members(thing: type) -> list[str]:
    entries = []
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            entries.append(f"#### {name}\n\n{_said(member)}")
        elif inspect.isfunction(member) and member.__doc__:
            entries.append(_entry(name, member, "####"))
    return entries


def _entry(name: str, function: Any, level: str) -> str:
    return f"{level} {name}\n\n{_signature(name.rpartition('.')[2], function)}\n{_said(function)}"


def _spaced(thing: Any) -> str:
    return _said(thing) + "\n" if _said(thing) else ""


def _said(thing: Any) -> str:
    said = paragraphs(thing)
    return said + "\n" if said else ""


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    given = [_clean(str(each)) for each in signature.parameters.values() if each.name != "self"]
    stars = [each.kind for each in signature.parameters.values() if each.name != "self"]
    first_keyword = next((place for place, kind in enumerate(stars) if kind is inspect.Parameter.KEYWORD_ONLY), None)
    if first_keyword is not None and inspect.Parameter.VAR_POSITIONAL not in stars:
        given.insert(first_keyword, "*")
    back = signature.return_annotation
    answers = "" if back is inspect.Signature.empty or isinstance(function, type) else f" -> {_clean(_named(back))}"
    line = f"{name}({', '.join(given)}){answers}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in given) + f"){answers}"
    return f"```text\n{line}\n```\n"


def _named(kind: Any) -> str:
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)


def _clean(text: str) -> str:
    """Without the modules that names come from."""
    bare = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text)
    bare = re.sub(r"<object object at \w+>", "...", bare)
    return bare.replace("~Function", "Function")


def _fields(kind: Any) -> str:
    notes = field_notes(kind)
    rows = []
    for field in msgspec.structs.fields(kind):
        default = "" if field.required else f"`{_value(field)}`"
        annotation = kind.__annotations__.get(field.name, field.type)
        rows.append((f"`{field.name}`", f"`{_clean(_named(annotation))}`", default, notes.get(field.name, "")))
    return table("field", "type", "default", "", rows=rows) + "\n"


def _value(field: Any) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return repr(value) if not isinstance(value, msgspec.Struct) else f"{type(value).__name__}()"
