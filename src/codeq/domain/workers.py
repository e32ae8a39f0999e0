"""Who works: what a worker tells about itself, and what is known of it.

Nobody checks what a worker tells. It is shown to people and decides nothing: who may claim, and who holds a lease, is
up to the token alone.
"""

from msgspec import Struct


class WorkerInfo(Struct, frozen=True, kw_only=True, gc=False):
    """What a worker tells about itself with each claim."""

    name: str
    """Unique among the workers with the same token, such as `host:pid`."""
    host: str = ""
    pid: int = 0
    version: str = ""
    """Of its codeQ."""
    slots: int = 0
    """How many tasks it runs at once; 0 if it does not tell."""
    commands: tuple[str, ...] | None = None
    """All commands that it works on, where one claim asks for some of them only; None for those of the claim."""


class WorkerStatus(Struct, frozen=True, kw_only=True, gc=False):
    """A worker that was heard from lately, or that holds tasks."""

    name: str
    subject: str
    """The subject of its token."""
    host: str = ""
    pid: int = 0
    version: str = ""
    slots: int = 0
    commands: tuple[str, ...] | None = None
    """None for every command."""
    first_seen_ms: int = 0
    last_seen_ms: int = 0
    """0 if it holds tasks, but was not heard from for so long that it counts as gone."""
    holds: int = 0
    """How many tasks it has in progress."""
    tasks: tuple[str, ...] = ()
    """The ids of some of them."""

    def works_on(self, command: str) -> bool:
        return bool(self.last_seen_ms) and (self.commands is None or command in self.commands)
