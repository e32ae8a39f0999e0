"""The code-review application end to end, on both queues: real processes, webhooks over HTTP, a git repository."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from examples.code_review import sample_webhooks as webhooks
from examples.code_review.reviews import Kind, Status
from examples.code_review.sample_webhooks import Webhook
from tests.examples.review_application import (
    SECRETS,
    Application,
    Changes,
    QueueServer,
    application,
    expected_finding,
    queue_server,
)
from tests.server.server_process import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(params=["redis", "codeq"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueServer]:
    with queue_server(request.param, tmp_path / "queue") as running:
        yield running


@pytest.fixture
def app(tmp_path: Path, queue: QueueServer) -> Iterator[Application]:
    with application(tmp_path / "app", queue.url) as running:
        yield running


def pushes(changes: Changes, numbers: range) -> list[tuple[int, Webhook]]:
    """Returns pushes of all three providers in turn."""
    makers: list[Callable[[int], Webhook]] = [
        lambda number: webhooks.github_push(changes.push(number), SECRETS["github"]),
        lambda number: webhooks.gitlab_push(changes.push(number), SECRETS["gitlab"]),
        lambda number: webhooks.gitea_push(changes.push(number), SECRETS["gitea"]),
    ]
    return [(number, makers[number % 3](number)) for number in numbers]


def pulls(changes: Changes, numbers: range) -> list[tuple[int, Webhook]]:
    makers: list[Callable[[int], Webhook]] = [
        lambda number: webhooks.github_pull(changes.pull(number), SECRETS["github"], number=number + 1),
        lambda number: webhooks.gitlab_merge(changes.pull(number), SECRETS["gitlab"], number=number + 1),
        lambda number: webhooks.gitea_pull(changes.pull(number), SECRETS["gitea"], number=number + 1),
    ]
    return [(number, makers[number % 3](number)) for number in numbers]


def send(app: Application, events: list[tuple[int, Webhook]]) -> dict[int, int]:
    """Sends the webhooks. Returns the number of the change by review."""
    answers = [(number, app.post(webhook)) for number, webhook in events]
    assert {answer.status_code for _, answer in answers} == {202}
    return {answer.json()["review"]: number for number, answer in answers}


def test_every_push_and_pull_request_is_reviewed_once_whatever_stops_in_the_middle(
    app: Application, queue: QueueServer, tmp_path: Path
) -> None:
    """The queue is down while webhooks arrive, a worker is killed in the middle of a review, the queue stops again."""
    changes = Changes(app.repositories)
    app.start_web()
    sent = send(app, pushes(changes, range(3)))
    eventually(app.is_all_offered, 30)
    queue.stop()
    sent |= send(app, pushes(changes, range(3, 6))) | send(app, pulls(changes, range(10, 16)))
    assert not app.is_all_offered()
    queue.start()
    eventually(app.is_all_offered, 30)

    gate = tmp_path / "gate"
    gate.mkdir()
    blocked = "tests.examples.gate_reviewer:GateReviewer"
    killed = app.start_worker(CODE_REVIEW_REVIEWERS=blocked, GATE_FOLDER=str(gate))
    eventually((gate / "began").exists, 30)
    killed.kill()
    killed.wait()
    [interrupted] = [review for review in app.reviews() if review.status is Status.RUNNING]
    assert interrupted.kind is Kind.PULL

    app.start_worker()
    eventually(lambda: app.database.counts().get("done", 0) >= 3, 60)
    queue.stop()
    queue.start()
    reviews = app.wait_until_ended()

    assert [review.status for review in reviews] == [Status.DONE] * 12
    assert {review.id: app.findings(review.id) for review in reviews} == {
        review_id: [expected_finding(number)] for review_id, number in sent.items()
    }
    assert next(review for review in reviews if review.id == interrupted.id).attempts == 2
    with app.database.transaction(writes=False) as tx:
        assert tx.execute("SELECT count(*) FROM outbox").fetchone()[0] == 0
    undisturbed = [review for review in reviews if review.attempts == 1]
    started = {
        review.kind: [each.started_ms or 0 for each in undisturbed if each.kind is review.kind] for review in reviews
    }
    assert max(started[Kind.PULL]) <= min(started[Kind.PUSH])


def test_a_web_service_that_is_killed_between_commit_and_enqueue_loses_nothing(
    app: Application, queue: QueueServer
) -> None:
    changes = Changes(app.repositories)
    web = app.start_web()
    queue.stop()
    sent = send(app, pushes(changes, range(2)))
    web.kill()
    web.wait()
    queue.start()
    app.start_web()
    app.start_worker()
    reviews = app.wait_until_ended()
    assert {review.id: app.findings(review.id) for review in reviews} == {
        review_id: [expected_finding(number)] for review_id, number in sent.items()
    }


def test_two_workers_share_the_work_and_store_nothing_twice(app: Application) -> None:
    changes = Changes(app.repositories)
    app.start_web()
    sent = send(app, pushes(changes, range(4)) + pulls(changes, range(10, 14)))
    workers = [app.start_worker(), app.start_worker()]
    reviews = app.wait_until_ended()
    assert {review.id: app.findings(review.id) for review in reviews} == {
        review_id: [expected_finding(number)] for review_id, number in sent.items()
    }
    for worker in workers:
        worker.terminate()
    assert [worker.wait(15) for worker in workers] == [0, 0]


@pytest.mark.parametrize("queue", ["redis"], indirect=True)
def test_the_same_webhook_makes_one_review_however_often_it_is_sent(app: Application) -> None:
    changes = Changes(app.repositories)
    app.start_web()
    [(_, webhook)] = pulls(changes, range(10, 11))
    again = webhooks.gitlab_merge(changes.pull(11), SECRETS["gitlab"], number=12, delivery="one")
    other_id = Webhook(again.path, {**again.headers, "x-gitlab-event-uuid": "two"}, again.body)
    answers = [app.post(each) for each in (webhook, webhook, again, other_id)]
    assert [answer.status_code for answer in answers] == [202, 200, 202, 200]
    assert Counter(answer.json()["review"] for answer in answers) == {1: 2, 2: 2}
    app.start_worker()
    assert [review.status for review in app.wait_until_ended()] == [Status.DONE] * 2


@pytest.mark.parametrize("queue", ["redis"], indirect=True)
def test_the_pages_show_what_was_found_and_run_nothing(app: Application) -> None:
    changes = Changes(app.repositories)
    app.start_web()
    assert "No reviews yet" in app.get().text
    send(app, pulls(changes, range(10, 11)))
    assert "waiting" in app.get("/reviews/1").text
    app.start_worker()
    app.wait_until_ended()
    listing, details = app.get(), app.get("/reviews/1")
    assert "Change 10" in listing.text
    assert "F401" in details.text
    assert "module_10.py" in details.text
    for answer in (listing, details):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert "<script" not in answer.text
    assert app.get("/reviews/2").status_code == 404
