"""Webhooks as the three providers send them, signed: for the sample, and for tests.

The bodies have the shape of real ones, with fields that the application does not read.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import Struct

ABSENT = "0" * 40


class Webhook(Struct, frozen=True):
    """One request: where to, and what."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class Commits(Struct, frozen=True, kw_only=True):
    """What happened in which repository: the branch went from one commit to another."""

    repository: str
    branch: str
    base: str
    head: str
    message: str = "Change something"
    author: str = "ada"


def github_push(commits: Commits, secret: str, *, delivery: str = "") -> Webhook:
    url = f"https://github.com/{commits.repository}"
    commit = _commit(commits, url)
    body = {
        "ref": f"refs/heads/{commits.branch}",
        "before": commits.base,
        "after": commits.head,
        "repository": _repository(commits, url),
        "pusher": {"name": commits.author, "email": f"{commits.author}@example.org"},
        "sender": _user(commits.author),
        "created": commits.base == ABSENT,
        "deleted": commits.head == ABSENT,
        "forced": False,
        "base_ref": None,
        "compare": f"{url}/compare/{commits.base[:12]}...{commits.head[:12]}",
        "commits": [commit],
        "head_commit": None if commits.head == ABSENT else commit,
    }
    return _github(body, "push", secret, delivery)


def github_pull(commits: Commits, secret: str, *, number: int, action: str = "opened", delivery: str = "") -> Webhook:
    url = f"https://github.com/{commits.repository}"
    body = {
        "action": action,
        "number": number,
        "pull_request": _pull(commits, url, number),
        "repository": _repository(commits, url),
        "organization": {"login": commits.repository.partition("/")[0], "id": 6811672},
        "sender": _user(commits.author),
        "installation": {"id": 375706, "node_id": "MDIzOkludGVncmF0aW9u"},
    }
    return _github(body, "pull_request", secret, delivery)


def gitea_push(commits: Commits, secret: str, *, delivery: str = "") -> Webhook:
    url = f"https://gitea.example.org/{commits.repository}"
    body = {
        "ref": f"refs/heads/{commits.branch}",
        "before": commits.base,
        "after": commits.head,
        "compare_url": f"{url}/compare/{commits.base}...{commits.head}",
        "commits": [_commit(commits, url)],
        "total_commits": 1,
        "head_commit": _commit(commits, url),
        "repository": _repository(commits, url),
        "pusher": _user(commits.author),
        "sender": _user(commits.author),
    }
    return _gitea(body, "push", secret, delivery)


def gitea_pull(commits: Commits, secret: str, *, number: int, action: str = "opened", delivery: str = "") -> Webhook:
    url = f"https://gitea.example.org/{commits.repository}"
    body = {
        "action": action,
        "number": number,
        "pull_request": {**_pull(commits, url, number), "merge_base": commits.base},
        "requested_reviewer": None,
        "repository": _repository(commits, url),
        "sender": _user(commits.author),
        "commit_id": "",
        "review": None,
    }
    return _gitea(body, "pull_request", secret, delivery)


def gitlab_push(commits: Commits, secret: str, *, delivery: str = "") -> Webhook:
    project = _project(commits)
    body = {
        "object_kind": "push",
        "event_name": "push",
        "before": commits.base,
        "after": commits.head,
        "ref": f"refs/heads/{commits.branch}",
        "ref_protected": False,
        "checkout_sha": None if commits.head == ABSENT else commits.head,
        "message": None,
        "user_id": 4,
        "user_name": commits.author.title(),
        "user_username": commits.author,
        "user_email": "",
        "project_id": 15,
        "project": project,
        "commits": [] if commits.head == ABSENT else [_commit(commits, project["web_url"])],
        "total_commits_count": 1,
        "push_options": {},
        "repository": {"name": project["name"], "homepage": project["web_url"], "visibility_level": 0},
    }
    return _gitlab(body, "Push Hook", secret, delivery)


def gitlab_merge(
    commits: Commits, secret: str, *, number: int, target: str = "main", action: str = "open", delivery: str = ""
) -> Webhook:
    project = _project(commits)
    body = {
        "object_kind": "merge_request",
        "event_type": "merge_request",
        "user": {"id": 1, "name": commits.author.title(), "username": commits.author, "email": "[REDACTED]"},
        "project": project,
        "repository": {"name": project["name"], "homepage": project["web_url"]},
        "object_attributes": {
            "id": 99,
            "iid": number,
            "target_branch": target,
            "source_branch": commits.branch,
            "source_project_id": 15,
            "target_project_id": 15,
            "title": commits.message,
            "description": "",
            "state": "opened",
            "draft": False,
            "merge_status": "unchecked",
            "last_commit": _commit(commits, project["web_url"]),
            "url": f"{project['web_url']}/-/merge_requests/{number}",
            "action": action,
        },
        "labels": [],
        "changes": {},
    }
    return _gitlab(body, "Merge Request Hook", secret, delivery)


def _github(body: Any, event: str, secret: str, delivery: str) -> Webhook:
    content = msgspec.json.encode(body)
    headers = {
        "user-agent": "GitHub-Hookshot/044aadd",
        "x-github-event": event,
        "x-github-delivery": delivery or _uuid(content),
        "x-github-hook-id": "292430182",
        "x-hub-signature-256": f"sha256={_hmac(secret, content)}",
    }
    return Webhook("/hooks/github", {"content-type": "application/json", **headers}, content)


def _gitea(body: Any, event: str, secret: str, delivery: str) -> Webhook:
    """Gitea sends the headers of GitHub too."""
    content = msgspec.json.encode(body)
    delivery = delivery or _uuid(content)
    headers = {
        "x-gitea-event": event,
        "x-gitea-event-type": event,
        "x-gitea-delivery": delivery,
        "x-gitea-signature": _hmac(secret, content),
        "x-github-event": event,
        "x-github-delivery": delivery,
        "x-hub-signature-256": f"sha256={_hmac(secret, content)}",
    }
    return Webhook("/hooks/gitea", {"content-type": "application/json", **headers}, content)


def _gitlab(body: Any, event: str, secret: str, delivery: str) -> Webhook:
    content = msgspec.json.encode(body)
    headers = {
        "user-agent": "GitLab/17.4.0",
        "x-gitlab-event": event,
        "x-gitlab-event-uuid": delivery or _uuid(content),
        "x-gitlab-instance": "https://gitlab.example.org",
        "x-gitlab-token": secret,
    }
    return Webhook("/hooks/gitlab", {"content-type": "application/json", **headers}, content)


def _hmac(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), content, sha256).hexdigest()


def _uuid(content: bytes) -> str:
    """Returns the same id for the same body, so that a sample that is sent twice is a delivery that was repeated."""
    return str(uuid5(NAMESPACE_URL, sha256(content).hexdigest()))


def _user(login: str) -> dict[str, Any]:
    return {
        "login": login,
        "id": 21031067,
        "avatar_url": "",
        "html_url": f"https://example.org/{login}",
        "type": "User",
    }


def _repository(commits: Commits, url: str) -> dict[str, Any]:
    owner, _, name = commits.repository.partition("/")
    return {
        "id": 186853002,
        "name": name,
        "full_name": commits.repository,
        "private": False,
        "owner": _user(owner),
        "html_url": url,
        "clone_url": f"{url}.git",
        "default_branch": "main",
    }


def _project(commits: Commits) -> dict[str, Any]:
    url = f"https://gitlab.example.org/{commits.repository}"
    return {
        "id": 15,
        "name": commits.repository.rpartition("/")[2],
        "web_url": url,
        "git_http_url": f"{url}.git",
        "namespace": commits.repository.rpartition("/")[0],
        "path_with_namespace": commits.repository,
        "default_branch": "main",
    }


def _commit(commits: Commits, url: str) -> dict[str, Any]:
    person = {"name": commits.author.title(), "email": f"{commits.author}@example.org", "username": commits.author}
    return {
        "id": commits.head,
        "message": f"{commits.message}\n\nWith a longer explanation.\n",
        "timestamp": "2026-05-04T09:30:00+02:00",
        "url": f"{url}/commit/{commits.head}",
        "author": person,
        "committer": person,
        "added": [],
        "removed": [],
        "modified": ["shop/cart.py"],
    }


def _pull(commits: Commits, url: str, number: int) -> dict[str, Any]:
    return {
        "id": 279147437,
        "number": number,
        "state": "open",
        "title": commits.message,
        "body": "Please have a look.",
        "html_url": f"{url}/pull/{number}",
        "user": _user(commits.author),
        "head": {"label": f"{commits.author}:{commits.branch}", "ref": commits.branch, "sha": commits.head},
        "base": {"label": "main", "ref": "main", "sha": commits.base},
        "draft": False,
        "merged": False,
    }
