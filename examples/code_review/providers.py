"""Reads the webhooks of GitHub, GitLab and Gitea: the fields that matter, and the request for a review in them.

Every text that later reaches git is checked here, by its type: commits are hexadecimal, names of branches and
repositories have no character that git or a file system could take for something else.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from .reviews import Kind, ReviewRequest
from .signatures import Headers

TEXT_CHARS_MAX = 200
"""Of a title or a name that is only shown; a longer one is cut."""

_SEGMENT = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9_.][A-Za-z0-9_.-]*"
_BRANCH = r"(?![-./])(?!.*(?:\.\.|//|/\.|@\{|\.lock(?:/|\Z)))[^\x00-\x20\x7f~^:?*\[\\]+(?<![./])"

Commit = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")]
Repository = Annotated[str, Meta(pattern=rf"\A{_SEGMENT}(?:/{_SEGMENT}){{1,9}}\Z", max_length=200)]
Branch = Annotated[str, Meta(pattern=rf"\A{_BRANCH}\Z", max_length=200)]
Delivery = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9-]{1,100}\Z")]
Number = Annotated[int, Meta(ge=1, le=2**53)]


class Ignored(Exception):
    """The webhook is genuine and asks for no review: a ping, a tag, a comment, a deleted branch."""


class Malformed(ValueError):
    """The webhook is genuine, and not as its provider describes it."""


def read_request(provider: str, headers: Headers, body: bytes) -> ReviewRequest:
    """Returns the request for a review. Raises Ignored if the event asks for none, Malformed if it makes no sense."""
    event_header, delivery_headers, readers = _PROVIDERS[provider]
    event = headers.get(event_header, b"").decode("latin-1")
    read = readers.get(event)
    if read is None:
        raise Ignored(f"events of kind {event[:40]!r} are not reviewed")
    try:
        found = next((headers[name] for name in delivery_headers if name in headers), b"")
        return read(msgspec.convert(found.decode("latin-1"), Delivery), body)
    except (msgspec.MsgspecError, UnicodeError) as fault:
        raise Malformed(str(fault)) from fault
    except RecursionError as fault:
        raise Malformed("the body is nested too deeply") from fault


def is_absent(commit: str) -> bool:
    """Returns whether the commit is all zeros, which stands for a branch that is not there, before or after."""
    return not commit.strip("0")


class _Owner(Struct):
    full_name: Repository


class _User(Struct):
    login: str | None = None


class _End(Struct):
    sha: Commit


class _PullRequest(Struct):
    head: _End
    base: _End
    user: _User | None = None
    """None if the account was deleted."""
    title: str | None = None
    html_url: str = ""


class _PullEvent(Struct):
    """`pull_request` of GitHub and of Gitea, which differ in the name of one action only."""

    action: str
    number: Number
    pull_request: _PullRequest
    repository: _Owner


class _Pusher(Struct):
    name: str = ""
    login: str = ""


class _Message(Struct):
    message: str = ""


class _PushEvent(Struct):
    """`push` of GitHub (`compare`, the pusher's `name`) and of Gitea (`compare_url`, the pusher's `login`)."""

    ref: str
    before: Commit
    after: Commit
    repository: _Owner
    pusher: _Pusher
    head_commit: _Message | None = None
    compare: str = ""
    compare_url: str = ""


class _GitlabProject(Struct):
    path_with_namespace: Repository
    web_url: str = ""


class _GitlabCommit(Struct):
    id: Commit
    message: str = ""


class _GitlabUser(Struct):
    username: str = ""


class _MergeRequest(Struct):
    iid: Number
    target_branch: Branch
    last_commit: _GitlabCommit
    title: str = ""
    url: str = ""
    action: str = ""


class _MergeEvent(Struct):
    project: _GitlabProject
    object_attributes: _MergeRequest
    user: _GitlabUser = field(default_factory=_GitlabUser)


class _GitlabPushEvent(Struct):
    ref: str
    before: Commit
    after: Commit
    project: _GitlabProject
    user_username: str = ""
    commits: list[_GitlabCommit] = []


def _pull(provider: str) -> "_Reader":
    def read(delivery: str, body: bytes) -> ReviewRequest:
        event = msgspec.json.decode(body, type=_PullEvent)
        if event.action not in ("opened", "reopened", "synchronize", "synchronized", "ready_for_review"):
            raise Ignored(f"a pull request that was {event.action[:40]} has nothing new to review")
        pull = event.pull_request
        return ReviewRequest(
            provider=provider,
            delivery=delivery,
            kind=Kind.PULL,
            repository=event.repository.full_name,
            subject=f"pull {event.number} {pull.base.sha}..{pull.head.sha}",
            base=pull.base.sha,
            head=pull.head.sha,
            title=_shown(f"#{event.number} {pull.title or ''}"),
            author=_shown((pull.user and pull.user.login) or ""),
            url=_link(pull.html_url),
        )

    return read


def _push(provider: str) -> "_Reader":
    def read(delivery: str, body: bytes) -> ReviewRequest:
        event = msgspec.json.decode(body, type=_PushEvent)
        branch = _pushed_branch(event.ref, event.after)
        message = event.head_commit.message if event.head_commit else ""
        return ReviewRequest(
            provider=provider,
            delivery=delivery,
            kind=Kind.PUSH,
            repository=event.repository.full_name,
            subject=f"push {branch} {event.before}..{event.after}",
            base=event.before,
            head=event.after,
            title=_shown(f"{branch}: {_first_line(message)}"),
            author=_shown(event.pusher.login or event.pusher.name),
            url=_link(event.compare or event.compare_url),
        )

    return read


def _gitlab_merge(delivery: str, body: bytes) -> ReviewRequest:
    """GitLab names the branch of the target, and not its commit."""
    event = msgspec.json.decode(body, type=_MergeEvent)
    merge = event.object_attributes
    # An update without new commits has the same head, so the same subject: it makes no second review.
    if merge.action not in ("open", "reopen", "update"):
        raise Ignored(f"a merge request with the action {merge.action[:40]!r} has nothing new to review")
    return ReviewRequest(
        provider="gitlab",
        delivery=delivery,
        kind=Kind.PULL,
        repository=event.project.path_with_namespace,
        subject=f"pull {merge.iid} {merge.target_branch}..{merge.last_commit.id}",
        base=f"refs/heads/{merge.target_branch}",
        head=merge.last_commit.id,
        title=_shown(f"!{merge.iid} {merge.title}"),
        author=_shown(event.user.username),
        url=_link(merge.url),
    )


def _gitlab_push(delivery: str, body: bytes) -> ReviewRequest:
    event = msgspec.json.decode(body, type=_GitlabPushEvent)
    branch = _pushed_branch(event.ref, event.after)
    message = event.commits[-1].message if event.commits else ""
    return ReviewRequest(
        provider="gitlab",
        delivery=delivery,
        kind=Kind.PUSH,
        repository=event.project.path_with_namespace,
        subject=f"push {branch} {event.before}..{event.after}",
        base=event.before,
        head=event.after,
        title=_shown(f"{branch}: {_first_line(message)}"),
        author=_shown(event.user_username),
        url=_link(f"{event.project.web_url}/-/compare/{event.before}...{event.after}"),
    )


def _pushed_branch(ref: str, after: str) -> str:
    if not ref.startswith("refs/heads/"):
        raise Ignored("only branches are reviewed")
    if is_absent(after):
        raise Ignored("the branch was deleted")
    return msgspec.convert(ref.removeprefix("refs/heads/"), Branch)


def _shown(text: str) -> str:
    return text.strip()[:TEXT_CHARS_MAX]


def _first_line(message: str) -> str:
    return message.lstrip().partition("\n")[0]


def _link(url: str) -> str:
    """Returns the address if it is one of the web; `javascript:` and the like become an empty text."""
    return url if re.match(r"https?://[^\s]{1,1000}\Z", url) else ""


_Reader = Callable[[str, bytes], ReviewRequest]
_PROVIDERS: Mapping[str, tuple[bytes, tuple[bytes, ...], Mapping[str, _Reader]]] = {
    "github": (
        b"x-github-event",
        (b"x-github-delivery",),
        {"push": _push("github"), "pull_request": _pull("github")},
    ),
    "gitea": (
        b"x-gitea-event",
        (b"x-gitea-delivery",),
        {"push": _push("gitea"), "pull_request": _pull("gitea")},
    ),
    "gitlab": (
        b"x-gitlab-event",
        # The first is the same for every try of one event; older GitLabs have the second alone.
        (b"idempotency-key", b"x-gitlab-event-uuid"),
        {"Push Hook": _gitlab_push, "Merge Request Hook": _gitlab_merge},
    ),
}
