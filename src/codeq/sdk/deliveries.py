"""Deliveries of result callbacks, for operators: `client.webhooks`. Needs a token of an admin."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from codeq.domain.errors import InvalidRequest
from codeq.domain.requests import BulkResult
from codeq.sdk.http_client import HttpClient
from codeq.wire import paths
from codeq.wire.deliveries import DeliveryPage, DeliveryView, SelectDeliveries, WebhookSecret, WebhookTest
from codeq.wire.queues import Selected

T = TypeVar("T")


class AsyncDeliveries:
    """The deliveries of the token's tenant."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def list(
        self, *, state: str | None = None, error: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> DeliveryPage:
        """A page of deliveries, newest first. `state`: pending, delayed, in_progress, dead or delivered."""
        wanted = {"state": state, "error": error, "cursor": cursor, "limit": limit}
        query = {name: value for name, value in wanted.items() if value is not None}
        return await self._http.call("GET", paths.DELIVERIES, None, DeliveryPage, query=query)

    async def get(self, delivery_id: str) -> DeliveryView:
        """One delivery, with what is sent and what was answered."""
        return await self._http.call("GET", paths.DELIVERY, None, DeliveryView, id=delivery_id)

    async def replay(
        self,
        ids: Sequence[str] | None = None,
        *,
        error: str | None = None,
        limit: int = 10_000,
        dry_run: bool = False,
    ) -> BulkResult:
        """Sends dead deliveries again: those of `ids`, those with the text `error` in their last error, or all; up to
        `limit` of them."""
        if ids is not None and error is not None:
            raise InvalidRequest("dead deliveries are chosen by ids or by error; not by both")
        if ids is not None and not ids:
            return BulkResult(0, 0, [])
        request = SelectDeliveries(
            ids=list(ids) if ids is not None else None,
            error=error,
            all=ids is None and error is None,
            limit=limit,
            dry_run=dry_run,
        )
        done = await self._http.call("POST", paths.DELIVERIES_REPLAY, request, Selected)
        return BulkResult(done.matched, done.changed, done.ids, done.refused)

    async def test(self, url: str) -> DeliveryView:
        """Sends a made-up result to the URL. `get` tells how that went."""
        return await self._http.call("POST", paths.WEBHOOK_TEST, WebhookTest(url=url), DeliveryView)

    async def secrets(self) -> Sequence[str]:
        """The secrets that sign the tenant's webhooks, the current one first; none if they are not signed."""
        return (await self._http.call("GET", paths.WEBHOOK_SECRET, None, WebhookSecret)).secrets


class Deliveries:
    """As `AsyncDeliveries`, with blocking calls."""

    def __init__(self, awaited: AsyncDeliveries, block_on: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._awaited = awaited
        self._block_on = block_on

    def list(
        self, *, state: str | None = None, error: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> DeliveryPage:
        """As `AsyncDeliveries.list`."""
        return self._run(self._awaited.list(state=state, error=error, cursor=cursor, limit=limit))

    def get(self, delivery_id: str) -> DeliveryView:
        """As `AsyncDeliveries.get`."""
        return self._run(self._awaited.get(delivery_id))

    def replay(
        self,
        ids: Sequence[str] | None = None,
        *,
        error: str | None = None,
        limit: int = 10_000,
        dry_run: bool = False,
    ) -> BulkResult:
        """As `AsyncDeliveries.replay`."""
        return self._run(self._awaited.replay(ids, error=error, limit=limit, dry_run=dry_run))

    def test(self, url: str) -> DeliveryView:
        """As `AsyncDeliveries.test`."""
        return self._run(self._awaited.test(url))

    def secrets(self) -> Sequence[str]:
        """As `AsyncDeliveries.secrets`."""
        return self._run(self._awaited.secrets())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._block_on(call)  # type: ignore[no-any-return]
