"""Bounds the memory of request bodies that are larger than what a connection buffers: overall and per tenant."""

from codeq.server.request import HttpRequest
from codeq.wire.errors import Unavailable

STEP_BYTES = 1 << 20
"""A body of unknown length is counted in steps of this size, as it arrives."""


class BodyBudget:
    def __init__(self, total_max: int, tenant_max: int) -> None:
        self._total_max = total_max
        self._tenant_max = tenant_max
        self._total = 0
        self._by_tenant: dict[str, int] = {}

    def reserve(self, request: HttpRequest, size: int) -> None:
        """Counts the body of the request with this size, until `release`. Raises Unavailable if that is too much."""
        more = size - request.reserved_bytes
        held = self._by_tenant.get(request.tenant, 0) + more
        if self._total + more > self._total_max or held > self._tenant_max:
            whose = "this tenant's" if held > self._tenant_max else "all"
            raise Unavailable(f"{whose} request bodies together are too large at this moment; try again in a moment")
        self._total += more
        self._by_tenant[request.tenant] = held
        request.reserved_bytes = size

    def release(self, request: HttpRequest) -> None:
        size, request.reserved_bytes = request.reserved_bytes, 0
        self._total -= size
        held = self._by_tenant[request.tenant] - size
        if held:
            self._by_tenant[request.tenant] = held
        else:
            del self._by_tenant[request.tenant]
