"""Turns the address of a lake into what reads and writes its files: a folder of this machine, or an object store.

An object store is read and written through delta-rs, which also commits to it: so one set of credentials and settings
counts for all, those that the store's own tools take from the environment, and no address holds a secret. Spark needs
no connector. See ADR 21.
"""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from msgspec import Struct
from pyarrow import fs

from codeq.errors import InvalidRequest

ENVIRONMENT = {
    "s3": ("AWS_",),
    "gs": ("GOOGLE_",),
    "abfss": ("AZURE_",),
    "az": ("AZURE_",),
    "hdfs": ("HADOOP_",),
}
"""The schemes of an address, and how the names of the variables begin that its store is reached with."""
_ALIASES = {"s3a": "s3", "abfs": "abfss"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Folder(Struct, frozen=True):
    """A folder of this machine, by its absolute path, or of an object store, by its URL. May be sent to executors."""

    address: str

    def __str__(self) -> str:
        return self.address

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.address}/{name}")

    def __fspath__(self) -> str:
        if not self.is_local:
            raise TypeError(f"{self.address} is no folder of this machine")
        return self.address

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]

    @property
    def parent(self) -> "Folder":
        return Folder(self.address.rpartition("/")[0])

    @property
    def is_local(self) -> bool:
        return "://" not in self.address

    def relative(self, path: str) -> str:
        """Returns the path of a file of the folder as Delta's log has it."""
        return path.removeprefix(f"{self.address}/")

    def holds_table(self) -> bool:
        """Whether there is a Delta table. Raises OSError if the store cannot be reached."""
        return bool(DeltaTable.is_deltatable(self.address))

    def environment(self) -> dict[str, str]:
        """Returns the variables that reach the store from this process. Executors on other machines need them too."""
        prefixes = () if self.is_local else ENVIRONMENT[urlsplit(self.address).scheme]
        return {name: value for name, value in os.environ.items() if name.startswith(prefixes)} if prefixes else {}


def folder_of(address: "str | os.PathLike[str] | Folder") -> Folder:
    """Parses the address of a lake: a path, or a URL such as `s3://bucket/path`. Raises InvalidRequest."""
    if isinstance(address, Folder):
        return address
    text = os.fspath(address)
    if "://" not in text:
        return Folder(str(Path(text).absolute()))  # executors may have another working directory
    parts = urlsplit(text)
    if parts.scheme == "file":
        return Folder(str(Path(parts.path).absolute()))
    scheme = _ALIASES.get(parts.scheme, parts.scheme)
    if scheme not in ENVIRONMENT:
        known = ", ".join(f"{name}://" for name in ENVIRONMENT)
        raise InvalidRequest(f"a lake is a folder, or is at one of {known}, not at {parts.scheme}://")
    has_user = parts.username is not None and scheme != "abfss"  # where it is the container
    if parts.password is not None or has_user or parts.query or parts.fragment:
        raise InvalidRequest(
            "the address of a lake has no credentials and no parameters, which others could read: set them in the "
            "environment, as for the store's own tools"
        )
    if not parts.netloc:
        raise InvalidRequest(f"the address of a lake at {scheme}:// needs a bucket: {scheme}://bucket/path")
    names = [name for name in parts.path.split("/") if name]
    if ".." in names or "." in names:
        raise InvalidRequest("the address of a lake has neither `.` nor `..` in it")
    return Folder("/".join([f"{scheme}://{parts.netloc}", *names]))


def files_at(addresses: Sequence[str]) -> tuple[fs.FileSystem, list[str]]:
    """Returns the file system of these files of one lake, and their paths in it."""
    if "://" not in addresses[0]:
        return fs.LocalFileSystem(), list(addresses)
    parts = urlsplit(addresses[0])
    root = f"{parts.scheme}://{parts.netloc}"
    return _store(root), [address.removeprefix(f"{root}/") for address in addresses]


def file_at(address: str) -> tuple[fs.FileSystem, str]:
    """Returns the file system of one file, and its path in it."""
    system, [path] = files_at([address])
    return system, path


@lru_cache(maxsize=8)
def _store(root: str) -> fs.FileSystem:
    """Kept for the life of a process, with its connections. Executors make their own."""
    return fs.PyFileSystem(DeltaStorageHandler(root))


def one_line(fault: Exception) -> str:
    """Returns the message of delta-rs, which has colours and a line for each cause."""
    return " ".join(_COLOURS.sub("", str(fault)).split())
