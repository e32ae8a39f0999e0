"""Calls about artifacts that several tests make."""

import base64
import hashlib
from typing import Any

import httpx
from tests.server.server_process import Tenant

from codeq.wire import paths


def path(task: dict[str, Any], name: str = "") -> str:
    """The path of an artifact, or of the list of them. `name` is as in a URL."""
    return paths.ARTIFACTS.format(id=task["id"]) + (f"/{name}" if name else "")


def put(tenant: Tenant, task: dict[str, Any], name: str, content: Any, **rest: Any) -> httpx.Response:
    """Uploads under the lease of the claimed task."""
    headers = rest.pop("headers", {})
    token = rest.pop("token", task["leaseToken"])
    caller = rest.pop("caller", tenant.worker)
    where = path(task, name) + (f"?leaseToken={token}" if token else "")
    answer: httpx.Response = caller.request("PUT", where, content=content, headers=headers, **rest)
    return answer


def submit(tenant: Tenant, task: dict[str, Any], *artifacts: Any, **fields: Any) -> httpx.Response:
    body = {
        "status": "COMPLETED", "result": {"ok": True}, "leaseToken": task["leaseToken"], "artifacts": list(artifacts),
    }  # fmt: skip
    return tenant.worker.post(paths.RESULT.format(id=task["id"]), body | fields)


def inline(name: str, content: bytes, **fields: Any) -> dict[str, Any]:
    return {"name": name, "contentBase64": base64.b64encode(content).decode(), **fields}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
