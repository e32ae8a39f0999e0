"""Webhooks: who may send them, what they may contain, and what becomes of them. No queue runs: none is needed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from examples.code_review import sample_webhooks as webhooks
from examples.code_review import web
from examples.code_review.database import Database
from examples.code_review.queues import open_queue
from examples.code_review.relay import Relay
from examples.code_review.reviews import Finding, Kind, Priority
from examples.code_review.sample_webhooks import ABSENT, Commits, Webhook
from examples.code_review.settings import read_settings
from examples.code_review.signatures import is_genuine
from tests.examples.review_application import SECRETS

BASE, HEAD = "1" * 40, "a" * 40
COMMITS = Commits(repository="acme/shop", branch="main", base=BASE, head=HEAD)
Change = Callable[[Any], Any]

MAKERS: dict[str, Callable[[Commits, str], Webhook]] = {
    "github push": webhooks.github_push,
    "gitlab push": webhooks.gitlab_push,
    "gitea push": webhooks.gitea_push,
    "github pull": lambda commits, secret: webhooks.github_pull(commits, secret, number=7),
    "gitlab merge": lambda commits, secret: webhooks.gitlab_merge(commits, secret, number=7),
    "gitea pull": lambda commits, secret: webhooks.gitea_pull(commits, secret, number=7),
}
every_webhook = pytest.mark.parametrize("name", MAKERS)


def made(name: str, commits: Commits = COMMITS, secret: str | None = None) -> Webhook:
    provider = name.partition(" ")[0]
    return MAKERS[name](commits, SECRETS[provider] if secret is None else secret)


def changed(name: str, change: Change) -> Webhook:
    """Returns the webhook with another body, signed like a genuine one."""
    body = json.loads(made(name).body)
    change(body)
    content = json.dumps(body).encode()
    return resigned(name, content)


def resigned(name: str, content: bytes) -> Webhook:
    genuine, provider = made(name), name.partition(" ")[0]
    headers = dict(genuine.headers)
    signature = webhooks._hmac(SECRETS[provider], content)
    if provider == "github":
        headers["x-hub-signature-256"] = f"sha256={signature}"
    if provider == "gitea":
        headers["x-gitea-signature"] = signature
    return Webhook(genuine.path, headers, content)


class Site:
    """The application without a server, a relay or a queue in between: it records, and answers."""

    def __init__(self, folder: Path, **variables: str) -> None:
        secrets = {f"CODE_REVIEW_{name.upper()}_SECRET": secret for name, secret in SECRETS.items()}
        self.settings = read_settings({"CODE_REVIEW_DATA": str(folder), **secrets, **variables})
        self.database = Database(self.settings.database)

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            queue = open_queue("redis://127.0.0.1:1/0", lock_s=60)
            relay = Relay(self.database, queue, offer_again_s=600)
            transport = httpx.ASGITransport(web.App(self.settings, self.database, relay))
            async with httpx.AsyncClient(transport=transport, base_url="http://reviews") as client:
                answer = await client.request(method, path, **request)
            await queue.close()
            return answer

        return asyncio.run(call())

    def post(self, webhook: Webhook, **headers: str) -> httpx.Response:
        return self.send("POST", webhook.path, content=webhook.body, headers={**webhook.headers, **headers})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@every_webhook
def test_a_genuine_webhook_becomes_a_review_with_the_priority_of_its_kind(site: Site, name: str) -> None:
    answer = site.post(made(name))
    assert (answer.status_code, answer.json()) == (202, {"review": 1, "isNew": True})
    [review] = site.database.reviews()
    assert review.provider == name.partition(" ")[0]
    assert (review.repository, review.head) == ("acme/shop", HEAD)
    if name.endswith("push"):
        assert (review.kind, review.priority, review.base) == (Kind.PUSH, Priority.NORMAL, BASE)
        assert review.title == "main: Change something"
    else:
        assert (review.kind, review.priority) == (Kind.PULL, Priority.HIGH)
        assert review.base == ("refs/heads/main" if "gitlab" in name else BASE)
        assert review.title.endswith("7 Change something")
    assert review.author == "ada"
    assert review.url.startswith("https://")
    assert [due.review_id for due in site.database.due(review.received_ms)] == [1]


@every_webhook
@pytest.mark.parametrize("secret", ["", "wrong", "of-githuB"])
def test_a_webhook_made_with_another_secret_is_refused(site: Site, name: str, secret: str) -> None:
    assert site.post(made(name, secret=secret)).status_code == 401
    assert site.database.reviews() == []


@every_webhook
def test_a_webhook_without_a_signature_is_refused(site: Site, name: str) -> None:
    genuine = made(name)
    signing = ("signature", "token")
    headers = {key: value for key, value in genuine.headers.items() if not key.rstrip("-256").endswith(signing)}
    assert len(headers) < len(genuine.headers)
    assert site.post(Webhook(genuine.path, headers, genuine.body)).status_code == 401


@pytest.mark.parametrize("name", [name for name in MAKERS if "gitlab" not in name])
def test_one_changed_byte_of_the_body_is_noticed(site: Site, name: str) -> None:
    genuine = made(name)
    forged = Webhook(genuine.path, genuine.headers, genuine.body.replace(b"ada", b"eve", 1))
    assert site.post(forged).status_code == 401


def test_a_signature_with_odd_characters_is_wrong_and_no_error(site: Site) -> None:
    genuine = made("github push")
    answer = site.send("POST", genuine.path, content=genuine.body, headers=[
        *[(key.encode(), value.encode()) for key, value in genuine.headers.items() if "signature" not in key],
        (b"x-hub-signature-256", "sha256=é☃".encode()),
    ])  # fmt: skip
    assert answer.status_code == 401


def test_a_provider_without_a_secret_accepts_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, CODE_REVIEW_GITLAB_SECRET="")
    assert site.post(made("gitlab push", secret="")).status_code == 404
    assert site.post(Webhook("/hooks/bitbucket", {}, b"")).status_code == 404


@pytest.mark.parametrize("provider", SECRETS)
def test_an_empty_secret_makes_nothing_genuine(provider: str) -> None:
    headers = {key.encode(): value.encode() for key, value in made(f"{provider} push", secret="").headers.items()}
    assert not is_genuine(provider, "", headers, made(f"{provider} push", secret="").body)


def test_nothing_is_compared_byte_by_byte() -> None:
    """A comparison that stops at the first difference tells an attacker how much was right."""
    source = Path(str(web.__file__)).with_name("signatures.py").read_text()
    assert "hmac.compare_digest(" in source
    assert " == " not in source


HOSTILE_REPOSITORIES = [
    "../etc",
    "acme/..",
    "/etc/passwd",
    "acme/shop\n",
    "-x/shop",
    "acme",
    "a/b\0",
    "a/" + "b" * 300,
    ".",
]
HOSTILE_COMMITS = ["--output=/tmp/x", "HEAD", "a" * 39, "a" * 40 + "\n", "a" * 39 + "G", "", "main", "@{upstream}"]
HOSTILE_BRANCHES = [
    "--upload-pack=touch x", "-x", "a..b", "a b", "a\nb", "a~1", "a^", "a:b", "x.lock", "/a", "a//b", "a/.b", "@{-1}",
    "a\\b", "a*", "a?", "a[", "b" * 300, "",
]  # fmt: skip


@pytest.mark.parametrize("repository", HOSTILE_REPOSITORIES)
@every_webhook
def test_a_hostile_name_of_a_repository_is_refused(site: Site, name: str, repository: str) -> None:
    def change(body: Any) -> None:
        place = body["project"] if "gitlab" in name else body["repository"]
        place["path_with_namespace" if "gitlab" in name else "full_name"] = repository

    assert site.post(changed(name, change)).status_code == 422
    assert site.database.reviews() == []


@pytest.mark.parametrize("commit", HOSTILE_COMMITS)
@every_webhook
def test_a_hostile_commit_is_refused(site: Site, name: str, commit: str) -> None:
    def change(body: Any) -> None:
        if name.endswith("push"):
            body["after"] = commit
        elif name == "gitlab merge":
            body["object_attributes"]["last_commit"]["id"] = commit
        else:
            body["pull_request"]["head"]["sha"] = commit

    assert site.post(changed(name, change)).status_code == 422
    assert site.database.reviews() == []


@pytest.mark.parametrize("branch", HOSTILE_BRANCHES)
@pytest.mark.parametrize("name", ["github push", "gitlab push", "gitlab merge"])
def test_a_hostile_branch_is_refused(site: Site, name: str, branch: str) -> None:
    def change(body: Any) -> None:
        if name == "gitlab merge":
            body["object_attributes"]["target_branch"] = branch
        else:
            body["ref"] = f"refs/heads/{branch}"

    assert site.post(changed(name, change)).status_code == 422


@pytest.mark.parametrize("branch", ["main", "feature/Über-größe", "release-1.2", "user/x#12", "dependabot/pip/a=1",
                                    "fix(cart)", "don't-panic!", "R&D/a;b", "<b>"])  # fmt: skip
def test_branches_as_people_name_them_are_accepted(site: Site, branch: str) -> None:
    commits = msgspec.structs.replace(COMMITS, branch=branch)
    assert site.post(made("gitlab push", commits)).status_code == 202


@pytest.mark.parametrize("repository", ["acme/.github", "group/sub-group/sub.group/shop_2", "a/b"])
def test_repositories_as_people_name_them_are_accepted(site: Site, repository: str) -> None:
    commits = msgspec.structs.replace(COMMITS, repository=repository)
    assert site.post(made("gitlab merge", commits)).status_code == 202


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"ref": "\\ud800"}', b'{"ref": 1e999}'],
    ids=lambda content: str(content[:12]),
)
@every_webhook
def test_a_signed_body_that_makes_no_sense_is_refused(site: Site, name: str, content: bytes) -> None:
    assert site.post(resigned(name, content)).status_code == 422


@pytest.mark.parametrize("delivery", ["", "x" * 101, "a b", "'; DROP TABLE reviews; --"])
def test_a_delivery_id_that_is_none_is_refused(site: Site, delivery: str) -> None:
    assert site.post(made("github push"), **{"x-github-delivery": delivery}).status_code == 422


def test_what_needs_no_review_is_answered_and_forgotten(site: Site) -> None:
    ping = made("github push")
    calls = [
        site.post(ping, **{"x-github-event": "ping"}),
        site.post(webhooks.github_pull(COMMITS, SECRETS["github"], number=7, action="labeled")),
        site.post(webhooks.gitea_pull(COMMITS, SECRETS["gitea"], number=7, action="closed")),
        site.post(webhooks.gitlab_merge(COMMITS, SECRETS["gitlab"], number=7, action="approved")),
        site.post(made("github push", msgspec.structs.replace(COMMITS, head=ABSENT))),
        site.post(changed("gitea push", lambda body: body.update(ref="refs/tags/v1"))),
    ]
    assert [(call.status_code, list(call.json())) for call in calls] == [(200, ["ignored"])] * 6
    assert site.database.reviews() == []


def test_new_commits_of_a_pull_request_are_reviewed_and_a_new_label_is_not(site: Site) -> None:
    later = msgspec.structs.replace(COMMITS, head="b" * 40)
    calls = [
        site.post(webhooks.gitlab_merge(COMMITS, SECRETS["gitlab"], number=7)),
        site.post(webhooks.gitlab_merge(COMMITS, SECRETS["gitlab"], number=7, action="update")),
        site.post(webhooks.gitlab_merge(later, SECRETS["gitlab"], number=7, action="update")),
        site.post(webhooks.github_pull(COMMITS, SECRETS["github"], number=7)),
        site.post(webhooks.github_pull(later, SECRETS["github"], number=7, action="synchronize")),
        site.post(webhooks.gitea_pull(later, SECRETS["gitea"], number=7, action="synchronized")),
    ]
    assert [call.status_code for call in calls] == [202, 200, 202, 202, 202, 202]


def test_a_delivery_that_is_sent_again_makes_no_second_review_not_even_under_another_id(site: Site) -> None:
    first = made("github pull")
    calls = [site.post(first), site.post(first), site.post(first, **{"x-github-delivery": "another"})]
    assert [call.json()["isNew"] for call in calls] == [True, False, False]
    assert len(site.database.reviews()) == 1


@pytest.mark.parametrize("name", ["github push", "gitlab merge"])
def test_a_body_that_is_nested_too_deeply_is_refused(site: Site, name: str) -> None:
    assert site.post(resigned(name, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")).status_code == 422


@pytest.mark.parametrize("name", ["github pull", "gitea pull"])
def test_a_pull_request_of_a_deleted_account_is_reviewed(site: Site, name: str) -> None:
    assert site.post(changed(name, lambda body: body["pull_request"].update(user=None, title=None))).status_code == 202


def test_two_changes_under_one_delivery_id_are_two_reviews(site: Site) -> None:
    """GitLab sends what a webhook set off under the id of that webhook, and a stranger may choose any."""
    calls = [
        site.post(made("gitlab push", msgspec.structs.replace(COMMITS, head=head)), **{"idempotency-key": "same"})
        for head in ("b" * 40, "c" * 40)
    ]
    assert [call.status_code for call in calls] == [202, 202]


def test_a_body_that_is_too_long_is_refused_with_and_without_a_length(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "BODY_BYTES_MAX", 1000)
    genuine = made("github push")
    assert len(genuine.body) > 1000
    assert site.post(genuine).status_code == 413

    async def piecewise() -> Any:
        yield genuine.body[:900]
        yield genuine.body[900:]

    async def unread() -> Any:
        raise AssertionError("a body of that length is not read at all")
        yield b""

    long = {**genuine.headers, "content-length": "1001"}
    for content, headers in ((piecewise(), genuine.headers), (unread(), long)):
        answer = site.send("POST", genuine.path, content=content, headers=dict(headers))
        assert answer.status_code == 413
    assert site.post(genuine, **{"content-length": "-5"}).status_code == 413


def test_a_form_and_another_method_are_refused(site: Site) -> None:
    genuine = made("github push")
    assert site.post(genuine, **{"content-type": "application/x-www-form-urlencoded"}).status_code == 415
    assert site.send("GET", "/hooks/github").status_code == 405
    assert site.send("DELETE", "/").status_code == 405
    assert site.send("GET", "/nowhere").status_code == 404
    assert site.send("GET", "/reviews/1e3").status_code == 404


def test_everything_that_strangers_wrote_is_escaped_on_the_pages(site: Site) -> None:
    markup = "<script>alert(1)</script>\"'&"

    def change(body: Any) -> None:
        body["pull_request"]["title"] = markup
        body["pull_request"]["user"]["login"] = markup
        body["pull_request"]["html_url"] = "javascript:alert(1)"

    assert site.post(changed("github pull", change)).status_code == 202
    review = site.database.begin(1, 1, 1)
    assert review is not None
    assert site.database.store(review, [Finding(markup, 1, markup, markup), Finding("\u202egnp.py", 2, "x", "y")], 2)
    pages = [site.send("GET", path).text for path in ("/", "/reviews/1")]
    for text in pages:
        assert "<script" not in text
        assert "javascript:" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;" in text
    assert "<bdi>\u202egnp.py</bdi>" in pages[1]


def test_a_database_that_does_not_answer_is_told_to_the_sender(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.code_review.database.BUSY_S_MAX", 0.05)
    with site.database.transaction():
        assert site.post(made("github push")).status_code == 503
    assert site.post(made("github push")).status_code == 202
