"""Uploads and downloads at once: a few tenants whose clients are slow leave places for others."""

from contextlib import ExitStack

import pytest

from codeq.domain.errors import CodeqError
from codeq.server.transfers import Transfers


def hold_all(transfers: Transfers, tenant: str, stack: ExitStack) -> int:
    """Begins transfers of the tenant until one is refused. Returns how many there are."""
    for number in range(1000):
        try:
            stack.enter_context(transfers.held(tenant))
        except CodeqError:
            return number
    pytest.fail("there is no limit")


def test_four_tenants_that_hold_all_they_may_leave_places_for_others() -> None:
    transfers = Transfers(32, 8, what="uploads")
    with ExitStack() as stack:
        assert [hold_all(transfers, f"slow-{number}", stack) for number in range(4)] == [8, 6, 4, 3]
        assert all(hold_all(transfers, f"other-{number}", stack) for number in range(4))
    assert transfers.running == 0


def test_a_tenant_alone_has_as_many_as_its_limit_says() -> None:
    with ExitStack() as stack:
        assert hold_all(Transfers(4, 0, what="uploads"), "alone", stack) == 4
