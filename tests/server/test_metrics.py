"""What a scrape of a server costs, shows and hides, and who may ask for it."""

import asyncio
import json
import random
import re
import signal
import time
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.in_process_server import InProcessServer
from tests.server.server_process import Server, Tenant, answered, eventually, refused, start_server

from codeq.domain.task import Move, Status
from codeq.server.metrics import Metrics
from codeq.server.queue_series import OTHER, QueueSeriesTable
from codeq.server.scrape import Scraper
from codeq.wire import paths

TOKEN = "a-token-for-scrapes-only"
Samples = dict[tuple[str, ...], float]


def parsed(text: str) -> Samples:
    """Returns the samples by name, tenant, command and the values of other labels; none may appear twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            queue = (labels.pop("tenant"), labels.pop("command")) if "tenant" in labels else ()
            key = (sample.name, *queue, *[labels[name] for name in sorted(labels)])
            assert key not in found
            found[key] = sample.value
    return found


def scraped(server: Server) -> Samples:
    return parsed(server.request("GET", paths.METRICS, token=None).text)


def fill(server: Server, tenants: int, queues: int) -> None:
    """Creates one task in each of so many queues of so many tenants."""
    for tenant in [server.tenant() for _ in range(tenants)]:
        for begin in range(0, queues, 1000):
            tasks = [{"command": f"c{n}", "payload": 1} for n in range(begin, min(begin + 1000, queues))]
            answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": tasks}), 200)


def test_a_loop_that_was_held_shows_in_the_histogram_and_until_the_next_scrape_as_the_maximum(
    tmp_path: Path,
) -> None:
    """(13.16) The metric by which the other tests of the event loop judge. A stopped process is a loop that is held."""
    with start_server(tmp_path) as own:
        before = scraped(own)
        own.process.send_signal(signal.SIGSTOP)
        time.sleep(1)
        own.process.send_signal(signal.SIGCONT)
        held = scraped(own)
        assert held["codeq_loop_held_max_seconds",] > 0.9
        assert held["codeq_loop_held_seconds_sum",] - before["codeq_loop_held_seconds_sum",] > 0.9
        assert scraped(own)["codeq_loop_held_max_seconds",] < 0.9
        counted = held["codeq_loop_held_seconds_count",]
        eventually(lambda: scraped(own)["codeq_loop_held_seconds_count",] > counted + 5)


# Cost


def test_a_scrape_of_thirty_thousand_queues_holds_the_loop_for_moments_only(tmp_path: Path) -> None:
    """(13.15) It held the loop for 0.3 s. The bound is wide and the best of five tries counts: others use it."""
    with start_server(tmp_path) as own:
        fill(own, tenants=6, queues=5000)
        scraped(own)
        tries = [scraped(own) for _ in range(5)]
        holds = [samples["codeq_loop_held_max_seconds",] for samples in tries]
        assert min(holds) < 0.05, holds
        [samples, *_] = [samples for samples in tries if not samples["codeq_scrape_truncated",]]
        ready = [value for (name, *labels), value in samples.items() if labels[2:] == ["ready"]]
        assert (len(ready), sum(ready)) == (1001, 30_000)


def test_scrapes_at_the_same_time_are_one(tmp_path: Path) -> None:
    """(13.15) A stranger who asks in parallel does not multiply the cost."""

    async def scenario() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            scrape = server.state.scraper.scrape
            first, *others = await asyncio.gather(*(scrape() for _ in range(20)))
            assert all(other is first for other in others)
            assert await scrape() is not first

    asyncio.run(scenario())


def test_what_cannot_be_shown_in_time_is_summed(tmp_path: Path) -> None:
    """(13.15) A scrape has two seconds; here it has none."""

    async def scenario() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            [caller] = await server.callers("acme")
            for command in ("a", "b", "b"):
                caller.send("POST", paths.TASKS, json.dumps({"command": command, "payload": 1}).encode())
                assert (await caller.answer()).status == 202
            late = Scraper(server.state.metrics, server.state.core, budget_s=0)
            samples = parsed((await late.scrape()).decode())
            assert samples["codeq_queue_depth", *OTHER, "ready"] == 3
            assert ("codeq_queue_depth", "acme", "a", "ready") not in samples
            assert samples["codeq_scrape_truncated",] == 1
            assert samples["codeq_task_created_total", "acme", "b"] == 2
            samples = parsed((await server.state.scraper.scrape()).decode())
            assert samples["codeq_queue_depth", "acme", "b", "ready"] == 2
            assert samples["codeq_scrape_truncated",] == 0

    asyncio.run(scenario())


# Labels


def test_the_busiest_queues_have_labels_and_the_rest_is_summed(tmp_path: Path) -> None:
    """(13.15) The first queues ever seen had them for good."""
    with start_server(tmp_path, settings={"metrics": {"queues_max": 2}}) as own:
        tenant = own.tenant("acme")
        for command in ("first", "second", "second", "third"):
            tenant.create(command)
        batch = {"tasks": [{"command": "busy", "payload": n} for n in range(50)]}
        answered(tenant.producer.post(paths.TASKS_BATCH, batch), 200)
        before = scraped(own)
        assert before["codeq_task_created_total", *OTHER] == 51
        assert before["codeq_queue_depth", *OTHER, "ready"] == 51
        tenant.create("busy")
        tenant.create("first")
        after = scraped(own)
        assert after["codeq_task_created_total", "acme", "busy"] == 1
        assert after["codeq_queue_depth", "acme", "busy", "ready"] == 51
        assert after["codeq_task_created_total", "acme", "second"] == 2
        assert ("codeq_task_created_total", "acme", "first") not in after
        assert after["codeq_task_created_total", *OTHER] == 52
        assert after["codeq_queue_depth", *OTHER, "ready"] == 3


@pytest.mark.parametrize("seed", range(5))
def test_no_counter_ever_goes_down_and_every_move_is_counted_once(seed: int) -> None:
    """(13.15) Queues get and lose their labels; Prometheus takes a lower value for a restart of the server."""
    chance = random.Random(seed)
    table = QueueSeriesTable(5)
    queues = [("t", f"c{n}") for n in range(12)] + [OTHER]
    seen: dict[tuple[str, str], int] = {}
    moves = 0
    for _ in range(300):
        favourites = chance.sample(queues, 4)
        for _ in range(chance.randrange(40)):
            table.of(*chance.choice(favourites)).moves[Move.ENQUEUE, Status.PENDING] += 1
            moves += 1
        for key, series in [*table.shown.items(), (OTHER, table.other)]:
            value = sum(series.moves.values())
            assert value >= seen.get(key, 0)
            seen[key] = value
        assert sum(seen.values()) == moves
        ranking = table.ranking()
        for key in queues:
            if key in table.shown:
                ranking.sizes[key] = chance.randrange(5)
            elif chance.random() < 0.5:
                ranking.add(key, chance.randrange(10))
        table.rank(ranking)
        assert len(table.shown) <= 5
        assert OTHER not in table.shown
    assert len(seen) > 6


def test_names_that_would_break_a_line_are_escaped(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            metrics = Metrics()
            metrics.queues.of('a"} 1\nforged{b="', "c\\").moves[Move.ENQUEUE, Status.PENDING] += 7
            samples = parsed((await Scraper(metrics, server.state.core).scrape()).decode())
            assert samples["codeq_task_created_total", 'a"} 1\nforged{b="', "c\\"] == 7

    asyncio.run(scenario())


# Access


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server with another address for scrapes, which asks for a token."""
    settings = {"metrics": {"host": "127.0.0.1", "port": 0, "token": TOKEN}}
    with start_server(tmp_path_factory.mktemp("separate"), settings=settings) as own:
        [started] = [json.loads(line) for line in own.log_text().splitlines() if '"started"' in line]
        yield own, f"http://127.0.0.1:{started['metrics_port']}"


def test_metrics_can_have_an_address_of_their_own(separate: tuple[Server, str]) -> None:
    """(13.15) And only there: neither has the main address them, nor theirs anything else."""
    own, base = separate
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=base, headers=bearer, trust_env=False) as scraper:
        text = scraper.get(paths.METRICS).text
        assert ("codeq_loop_held_seconds_count",) in parsed(text)
        for path in (paths.TASKS, paths.DOCS, paths.HEALTHZ, paths.QUEUES):
            assert scraper.get(path).status_code == 404
    refused(own.request("GET", paths.METRICS, token=TOKEN), 404, "not-found")
    assert paths.METRICS not in own.request("GET", paths.OPENAPI).json()["paths"]
    assert own.request("GET", paths.HEALTHZ).status_code == 200


@pytest.mark.parametrize("value", [None, f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer dev-token"])
def test_metrics_ask_for_their_token(separate: tuple[Server, str], value: str | None) -> None:
    """(13.15)"""
    _, base = separate
    headers = {} if value is None else {"Authorization": value}
    refused(httpx.get(base + paths.METRICS, headers=headers, trust_env=False), 401, "unauthenticated")


def test_metrics_are_open_unless_a_token_is_set(server: Server, tenant: Tenant) -> None:
    """(13.15) As in the original codeQ."""
    tenant.create()
    assert scraped(server)["codeq_task_created_total", tenant.name, "work"] == 1


# Pages


def test_a_page_may_load_nothing_run_nothing_and_appear_in_no_frame(server: Server) -> None:
    """(13.15)"""
    answer = server.request("GET", paths.DOCS, token=None)
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    [style] = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert policy.pop("style-src") == f"'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'"
    assert policy == dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"
    for forbidden in ("<script", " style=", " onclick=", "javascript:", "src=", "@import", "url("):
        assert forbidden not in answer.text
