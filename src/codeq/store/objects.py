"""What a store of files must do: the interface between artifacts and the object store that keeps their content.

Keys are made by the server and are safe as paths; what a client calls its files never becomes part of one. An object is
never changed: the same key always has the same content.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

Content = bytes | bytearray | memoryview


class ObjectMissing(Exception):
    """There is no object with this key."""


class StoredObject(NamedTuple):
    key: str
    size: int
    modified_s: float


class Objects(Protocol):
    """Every call raises StoreUnavailable if the object store fails, StoreFull if it has no room."""

    async def put(self, key: str, content: Content) -> None:
        """Stores the object whole or not at all. It survives power loss once this has returned."""

    async def read(self, key: str, start: int, end: int) -> bytes:
        """Returns a part of the object, which must not be empty. Raises ObjectMissing."""

    def list(self, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        """Iterates over pages of the objects below the prefix, which is a sequence of whole path segments."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes those of the objects that exist."""

    async def remove_unfinished(self, before_s: float) -> int:
        """Removes what writes that began before this Unix time have left unfinished, and returns how many. Object
        stores do that themselves; in a directory, a killed process leaves the file that it was writing."""
