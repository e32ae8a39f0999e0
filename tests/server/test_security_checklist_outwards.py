"""The security checklist, one test per number: Redis keys (39), headers of webhooks (66), names of files (68).

The other numbers of what leaves the server, 56 to 71, are in the names of the tests of webhooks and artifacts.
"""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot
from tests.server.artifact_calls import inline, submit
from tests.server.server_process import Tenant, answered, refused
from tests.server.stores import artifacts_folder

from codeq.domain.limits import NAME_PATTERN, TENANT_PATTERN
from codeq.domain.queue import QueueKey
from codeq.store.redis.keys import ShardKeys
from codeq.wire import paths

NOT_HERE = {72, 74, 76}
"""There is no dashboard."""


@given(st.from_regex(TENANT_PATTERN, fullmatch=True), st.from_regex(NAME_PATTERN, fullmatch=True), st.integers(0, 4095))
def test_check_39_all_keys_of_a_queue_are_in_one_slot(tenant: str, command: str, shard: int) -> None:
    keys = ShardKeys("codeq", shard)
    queue = keys.queue(QueueKey(tenant, command))
    of_tenant = [keys.counts(tenant), keys.dead(tenant), keys.ended(tenant), keys.listing(tenant), keys.ready(tenant)]
    claim = keys.claim(tenant, tenant, command)
    names = [*queue.pending, queue.delayed, queue.leased, queue.withdrawn, *of_tenant, claim]
    assert {key_slot(name.encode()) for name in names} == {key_slot(keys.records.encode())}
    assert all(name.startswith(keys.tag) and name.count("{") == name.count("}") == 1 for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("value", ["vendor=1\r\nx-evil: 1", "vendor=1\n", "a\x00b", "a\x7fb"])
def test_check_66_line_breaks_do_not_reach_the_headers_of_a_webhook(tenant: Tenant, value: str) -> None:
    task = {"command": "work", "payload": 1, "webhook": "https://example.com/hook"}
    traced = {**task, "traceParent": f"00-{'a' * 32}-{'b' * 16}-01", "traceState": value}
    refused(tenant.producer.post(paths.TASKS, traced), 400, "invalid")
    hooked = {**task, "webhook": f"https://example.com/{value}"}
    assert tenant.producer.post(paths.TASKS, hooked).status_code == 400
    wanted = {"callbackUrl": f"https://example.com/{value}", "eventTypes": ["work"]}
    assert tenant.worker.post(paths.SUBSCRIPTIONS, wanted).status_code == 400


def test_check_68_no_name_of_a_client_is_a_name_of_a_file(tenant: Tenant) -> None:
    """So there is nothing that a link could stand in for: names of files are made by the server."""
    task = tenant.held()
    answered(submit(tenant, task, inline("report.txt", b"x"), inline("link", b"y")), 200)
    found = list(artifacts_folder(tenant.server.data).rglob("*"))
    assert [file for file in found if file.is_file()]
    assert not [file for file in found if file.is_symlink() or file.name in ("report.txt", "link")]


def test_every_number_of_the_checklist_is_in_the_name_of_a_test() -> None:
    folder = Path(__file__).parents[1]
    texts = [file.read_text() for file in folder.rglob("test_*.py")]
    found = {int(number) for text in texts for number in re.findall(r"def test_check_(\d\d)_", text)}
    assert found == set(range(1, 89)) - NOT_HERE
