"""Subscriptions to notifications, for operators: `client.subscriptions`. Needs a token of an admin."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from codeq.sdk.http_client import HttpClient, path_of
from codeq.wire import paths
from codeq.wire.subscriptions import SubscriptionView, SubscriptionViews


class AsyncSubscriptions:
    """The subscriptions of the token's tenant. Workers make and renew them over HTTP."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def list(self) -> Sequence[SubscriptionView]:
        """All subscriptions that have not expired."""
        answer = await self._http.call("GET", paths.ADMIN_SUBSCRIPTIONS, None, SubscriptionViews)
        return answer.subscriptions

    async def delete(self, subscription_id: str) -> None:
        """Ends a subscription. Its worker is notified no more."""
        await self._http.send("DELETE", path_of(paths.ADMIN_SUBSCRIPTION, {"id": subscription_id}))


class Subscriptions:
    """As `AsyncSubscriptions`, with blocking calls."""

    def __init__(self, awaited: AsyncSubscriptions, block_on: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._awaited = awaited
        self._block_on = block_on

    def list(self) -> Sequence[SubscriptionView]:
        """As `AsyncSubscriptions.list`."""
        found: Sequence[SubscriptionView] = self._block_on(self._awaited.list())
        return found

    def delete(self, subscription_id: str) -> None:
        """As `AsyncSubscriptions.delete`."""
        self._block_on(self._awaited.delete(subscription_id))
