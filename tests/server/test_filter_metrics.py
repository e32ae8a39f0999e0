"""The Bloom filters of a server on Redis: their settings, and what /metrics says of them."""

from pathlib import Path

from tests.redis_servers import start_node
from tests.server.server_process import answered, start_server

from codeq.wire import paths


def test_memory_checks_and_hits_of_the_filters_are_metrics(tmp_path: Path) -> None:
    with start_node(tmp_path / "redis") as node:
        filters = {"idempotency": {"items": 1000}, "ghost": {"items": 0}}
        settings = {"store": {"url": node.url, "filters": filters}}
        with start_server(tmp_path / "server", settings=settings) as server:
            producer = server.tenant().producer
            task = {"command": "work", "payload": 1, "idempotencyKey": "order-1"}
            ids = {answered(producer.post(paths.TASKS, task), 202)["id"] for _ in range(3)}
            assert len(ids) == 1
            lines = server.request("GET", "/metrics", token=None).text.splitlines()
    shown = dict(line.rsplit(" ", 1) for line in lines if line.startswith("codeq_filter_"))
    assert float(shown['codeq_filter_checks_total{filter="idempotency"}']) == 3
    assert float(shown['codeq_filter_hits_total{filter="idempotency"}']) == 2
    assert 1000 < float(shown['codeq_filter_bytes{filter="idempotency"}']) < 2000
    assert float(shown['codeq_filter_bytes{filter="ghost"}']) == 0
