"""Rate limits: who shares a bucket, and what a call costs. Every limit here refills so slowly that it never does."""

from collections.abc import Callable, Iterator, Mapping

import httpx
import pytest
from tests.server.issuer import Issuer, claims, sign
from tests.server.server_process import Server, answered, at, refused, start_server

from codeq.server.auth.principal import Principal
from codeq.server.ratelimit import Charge, Rate, RateLimiter
from codeq.server.read_settings import load
from codeq.wire import paths
from codeq.wire.errors import RateLimited, TooLarge

TASK = {"command": "work", "payload": 1}
CREATE = Charge("producer", "create_task")


def rate(burst: int) -> dict[str, int]:
    return {"requests_per_minute": 1, "burst_size": burst}


LIMITS = {
    "producer": rate(40),
    "worker": rate(10),
    "lease": rate(1000),
    "admin": rate(3),
    "read": rate(4),
    "tenant_producer": rate(60),
    "tenant_read": rate(6),
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("limited"), settings={"rate_limit": LIMITS}) as server:
        yield server


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose tokens a test signs itself."""
    with Issuer().context() as issuer:
        settings = issuer.settings() | {"rate_limit": {"producer": rate(10)}}
        with start_server(tmp_path_factory.mktemp("issued"), dev=False, settings=settings) as server:
            yield server


def create(server: Server, header: str, tasks: int = 1, headers: Mapping[str, str] | None = None) -> httpx.Response:
    pairs = {"Authorization": header, **(headers or {})}
    return server.request("POST", paths.TASKS_BATCH, {"tasks": [TASK] * tasks}, token=None, headers=pairs)


def test_another_spelling_of_the_header_gets_no_other_bucket(limited: Server) -> None:
    """(13.18)"""
    token = limited.token("spelling")
    spellings = [f"Bearer {token}", f"bearer {token}", f"BEARER {token}", f"bEaReR {token}", f"Bearer    {token}"]
    for spelling in spellings[:4]:
        answered(create(limited, spelling, 10), 200)
    for spelling in spellings:
        refused(create(limited, spelling), 429, "rate-limited")


def test_check_51_ten_fresh_tokens_of_one_subject_share_one_bucket(issued: Server) -> None:
    """(13.18)"""
    fresh = [sign(claims(jti=str(number))) for number in range(11)]
    assert len(set(fresh)) == 11
    for token in fresh[:10]:
        answered(create(issued, f"Bearer {token}"), 200)
    refused(create(issued, f"Bearer {fresh[10]}"), 429, "rate-limited")
    answered(create(issued, f"Bearer {sign(claims(sub='somebody-else'))}"), 200)
    answered(create(issued, f"Bearer {sign(claims(tid='globex'))}"), 200)


def test_check_52_a_forwarded_address_does_not_change_the_bucket(limited: Server) -> None:
    """(13.18)"""
    header = f"Bearer {limited.token('forwarded')}"
    answered(create(limited, header, 40), 200)
    for address in ("10.0.0.1", "10.0.0.2"):
        refused(create(limited, header, headers={"X-Forwarded-For": address}), 429, "rate-limited")


def test_check_55_a_batch_costs_its_items_and_one_over_the_burst_is_never_accepted(limited: Server) -> None:
    """(13.18)"""
    tenant = limited.tenant()
    for _ in range(4):
        answer = tenant.producer.post(paths.TASKS_BATCH, {"tasks": [TASK] * 1000})
        assert "at most 40" in refused(answer, 413, "too-large")["error"]
    answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [TASK] * 30}), 200)
    over = tenant.producer.post(paths.TASKS_BATCH, {"tasks": [TASK] * 11})
    assert refused(over, 429, "rate-limited")["retryAfterSeconds"] >= 60
    assert tenant.counts()["ready"] == 30


def test_all_subjects_of_a_tenant_share_the_bucket_of_the_tenant(limited: Server) -> None:
    """(13.18)"""
    one, other = (f"Bearer {limited.token('shared', subject=subject)}" for subject in ("one", "other"))
    answered(create(limited, one, 40), 200)
    answered(create(limited, other, 20), 200)
    refused(create(limited, other), 429, "rate-limited")
    answered(create(limited, f"Bearer {limited.token('unrelated')}", 40), 200)


def test_a_claim_costs_the_tasks_it_returns_and_returns_no_more_than_it_can_pay_for(limited: Server) -> None:
    """(13.18)"""
    tenant = limited.tenant()
    answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [TASK] * 30}), 200)
    for _ in range(3):  # nothing to return: each costs the request
        assert tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["none"], "count": 1000}).status_code == 204
    claimed = answered(tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 1000}), 200)
    assert len(claimed["tasks"]) == 7
    refused(tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 1}), 429, "rate-limited")
    refused(tenant.worker.post(paths.CLAIM, {"commands": ["work"]}), 429, "rate-limited")


def test_results_and_heartbeats_have_a_bucket(limited: Server) -> None:
    """(13.18)"""
    tenant = limited.tenant()
    task = tenant.held()
    answered(tenant.worker.post(at(paths.HEARTBEAT, task["id"])), 200)
    outcome = {"taskId": task["id"], "status": "COMPLETED", "result": 1}
    answered(tenant.worker.post(paths.RESULTS_BATCH, {"results": [outcome] * 999}), 200)
    problem = refused(tenant.worker.post(at(paths.RESULT, task["id"]), outcome), 429, "rate-limited")
    assert (problem["scope"], problem["operation"]) == ("lease", "submit_result")


def test_a_batch_of_heartbeats_costs_as_many_as_it_has(limited: Server) -> None:
    """(13.18)"""
    tenant = limited.tenant()
    beat = {"taskId": tenant.held()["id"]}
    answered(tenant.worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": [beat] * 999}), 200)
    answered(tenant.worker.post(at(paths.HEARTBEAT, beat["taskId"])), 200)
    problem = refused(tenant.worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": [beat]}), 429, "rate-limited")
    assert (problem["scope"], problem["operation"]) == ("lease", "heartbeat")


def test_of_a_batch_of_heartbeats_as_many_extend_their_leases_as_can_be_paid_for(limited: Server) -> None:
    """(13.18)"""
    tenant = limited.tenant()
    beat = {"taskId": tenant.held()["id"]}
    answered(tenant.worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": [beat] * 998}), 200)
    results = answered(tenant.worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": [beat] * 4}), 200)["results"]
    assert [each.get("code") for each in results] == [None, None, "rate-limited", "rate-limited"]
    assert results[0]["leaseUntil"]


def test_every_admin_route_and_every_read_spends(limited: Server) -> None:
    """(13.18)"""
    tenant = limited.tenant()
    calls: list[Callable[[], httpx.Response]] = [
        lambda: tenant.admin.post(at(paths.PAUSE, "work")),
        lambda: tenant.admin.get(paths.DLQ),
        lambda: tenant.admin.post(paths.CLEANUP),
    ]
    assert [call().status_code for call in calls] == [200, 200, 200]
    for call in calls:
        assert refused(call(), 429, "rate-limited")["scope"] == "admin"
    reads = [paths.TASKS, paths.QUEUES, at(paths.TASK, "x"), at(paths.HISTORY, "x")]
    assert [tenant.producer.get(path).status_code for path in reads] == [200, 200, 404, 404]
    for path in reads:
        assert refused(tenant.producer.get(path), 429, "rate-limited")["scope"] == "read"
    assert [tenant.worker.get(paths.QUEUES).status_code for _ in range(3)] == [200, 200, 429]
    answered(tenant.producer.post(paths.TASKS, TASK), 202)


def test_a_request_that_is_refused_for_its_body_spends_too(limited: Server) -> None:
    """(13.18)"""
    tenant = limited.tenant()
    answers = [tenant.producer.request("POST", paths.TASKS, content=b"{").status_code for _ in range(41)]
    assert answers == [400] * 40 + [429]


def test_a_batch_that_is_refused_costs_nothing_and_says_when_it_would_pass() -> None:
    """(13.18)"""
    now_s = [0.0]
    rates = {"producer": Rate(requests_per_minute=60, burst_size=10)}
    limiter = RateLimiter(rates, {}, clock=lambda: now_s[0])
    caller = Principal(tenant="acme", subject="somebody")
    limiter.spend(CREATE, caller)
    limiter.spend_for_batch(CREATE, caller, 6)
    for _ in range(3):
        limiter.spend(CREATE, caller)
        with pytest.raises(RateLimited) as refusal:
            limiter.spend_for_batch(CREATE, caller, 8)
        assert refusal.value.retry_after_s == 4
    now_s[0] = 4.0
    limiter.spend(CREATE, caller)
    limiter.spend_for_batch(CREATE, caller, 8)
    with pytest.raises(RateLimited):
        limiter.spend(CREATE, caller)
    now_s[0] = 100.0
    limiter.spend(CREATE, caller)
    with pytest.raises(TooLarge, match="at most 10"):
        limiter.spend_for_batch(CREATE, caller, 11)


def test_claims_that_waited_together_pay_what_they_were_given() -> None:
    """(13.18)"""
    limiter = RateLimiter({}, {"worker": Rate(requests_per_minute=60, burst_size=10)}, clock=lambda: 0.0)
    caller, claim = Principal(tenant="acme", subject="somebody"), Charge("worker", "claim")
    for _ in range(2):
        limiter.spend(claim, caller)
    assert limiter.affordable(claim, caller, 100) == 9
    for _ in range(2):
        limiter.spend_late(claim, caller, 9)
    with pytest.raises(RateLimited) as refusal:
        limiter.spend(claim, caller)
    assert refusal.value.retry_after_s == 9


def test_a_burst_that_no_batch_of_results_could_pass_is_refused_at_the_start() -> None:
    """(13.18)"""
    environment = {"CODEQ_RATE_LIMIT_LEASE_BURST_SIZE": "999", "CODEQ_RATE_LIMIT_LEASE_REQUESTS_PER_MINUTE": "1"}
    with pytest.raises(Exception, match=r"rate_limit\.lease\.burst_size: at least 1000"):
        load(None, environment)
