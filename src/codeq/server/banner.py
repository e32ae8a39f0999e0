"""Prints where a server listens, where its tasks are, and how to try it."""

import socket
import sys

import codeq
from codeq.server.settings import Settings
from codeq.server.state import AppState


def print_banner(state: AppState, listener: socket.socket, *, is_dev: bool) -> None:
    settings = state.settings
    base = f"http://{settings.http.host}:{listener.getsockname()[1]}"
    lines = [f"codeQ {codeq.__version__} at {base}, {_place(settings)} ({settings.store.durability})"]
    if settings.store.url:
        lines = [f"codeQ {codeq.__version__} at {base}, {_place(settings)}"]
        lines.append(f"An acknowledged write survives {state.durability.survives}.")
        lines += [f"WARNING: {warning}" for warning in state.durability.warnings]
    if is_dev:
        lines.append(_WALK.replace("@BASE@", base))
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _place(settings: Settings) -> str:
    """Returns where the tasks are, without a password."""
    if not settings.store.url:
        return f"data in {settings.store.path}"
    scheme, _, rest = settings.store.url.partition("://")
    return f"tasks in {scheme}://{rest.rpartition('@')[2]}"


_WALK = """API description: @BASE@/docs

Try it:
  curl -s @BASE@/v1/codeq/tasks -H 'Authorization: Bearer dev-token' -d '{"command":"hello","payload":{"to":"world"}}'
  curl -s @BASE@/v1/codeq/tasks/claim -H 'Authorization: Bearer dev-token' -d '{"commands":["hello"],"waitSeconds":5}'

`dev-token` is producer, worker and admin of tenant `dev`. Other tenants: codeq token --data DIR --tenant T --role ROLE
"""
