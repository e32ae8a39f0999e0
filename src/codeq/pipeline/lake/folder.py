"""Turns the address of a lake into what reads and writes its files: a folder of this machine, or an object store.

An object store is read and written through delta-rs, which also commits to it: so one set of credentials and settings
counts for all, those that the store's own tools take from the environment, and no address holds a secret. Spark needs
no connector. See ADR 21.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from msgspec import Struct
from pyarrow import fs

from codeq.domain.errors import CodeqError
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
_MISSPELT = re.compile(rf"(?i)(?:{'|'.join([*ENVIRONMENT, *_ALIASES, 'file'])}):|[a-z][a-z0-9+.-]+:/")
_UNFIT = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\ud800-\udfff]")
"""What delta-rs takes for something else in the path of a folder."""
_PATTERN = re.compile(r"[*?\[\]{}]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STACK = re.compile(r"\n\s*0: ")
_NAMED_MAX = 3
"""Files that the text of an error names."""


class LakeUnavailable(CodeqError):
    """The storage of the lake failed, and no other run was the reason. The same may succeed later."""

    code = "lake-unavailable"


class LakeDamaged(CodeqError):
    """A file that a table consists of, or its log, is missing or cannot be read."""

    code = "lake-damaged"


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

    @property
    def is_for_spark(self) -> bool:
        """Whether Spark's own reader finds its files: it needs a connector for stores, and takes some characters of a
        path for a pattern.
        """
        return self.is_local and not _PATTERN.search(self.address)

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
    if not text.strip():
        raise InvalidRequest("the address of the lake is empty")
    parts = urlsplit(text)
    if "://" not in text or parts.scheme == "file":
        return _local_folder(text)
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


def _local_folder(text: str) -> Folder:
    """Executors may have another working directory, so the path becomes absolute."""
    parts = urlsplit(text)
    if "://" in text:
        if parts.netloc not in ("", "localhost"):
            raise InvalidRequest("the address of a folder has three slashes: file:///path")
        text = unquote(parts.path)
    elif _MISSPELT.match(text):  # it would become a folder of this machine, called `s3:`
        raise InvalidRequest(
            f"the address of a lake at a store has two slashes, {parts.scheme}://bucket/path, not {parts.scheme}:/; "
            f"write ./{parts.scheme}: for a folder of that name"
        )
    folder = str(Path(text).absolute())
    if _UNFIT.search(folder):
        raise InvalidRequest(
            f"the folder of a lake cannot be {folder!r}: delta-rs, which commits to it, takes a percent sign with two "
            "digits, a backslash or a control character for something else"
        )
    return Folder(folder)


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


def force_to_disk(path: str | os.PathLike[str]) -> None:
    """Returns once a file of this machine survives power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def storage_errors(addresses: Sequence[str]) -> Iterator[None]:
    """Raises LakeDamaged if one of these files is missing or no Parquet, and LakeUnavailable if the storage fails."""
    try:
        yield
    except (FileNotFoundError, pa.ArrowInvalid) as fault:
        raise LakeDamaged(
            f"a file of the lake is missing or cannot be read: {_named(fault, addresses)}. Restore it; if it is of "
            "silver or gold, `codeq pipeline rebuild` makes them anew"
        ) from None
    except OSError as fault:
        raise LakeUnavailable(f"the storage of the lake failed: {_named(fault, addresses)}") from None


def _named(fault: Exception, addresses: Sequence[str]) -> str:
    """The message of the fault, and the files that it may be about unless it names one."""
    text = one_line(fault)
    if any(address.rpartition("/")[2] in text for address in addresses):
        return text
    more = f", or {len(addresses) - _NAMED_MAX} others" if len(addresses) > _NAMED_MAX else ""
    return f"{text} ({', '.join(addresses[:_NAMED_MAX])}{more})"


@lru_cache(maxsize=8)
def _store(root: str) -> fs.FileSystem:
    """Kept for the life of a process, with its connections. Executors make their own."""
    return fs.PyFileSystem(DeltaStorageHandler(root))


def one_line(fault: Exception) -> str:
    """Returns the message of delta-rs, which has colours, a line for each cause, and sometimes a stack."""
    return " ".join(_COLOURS.sub("", _STACK.split(str(fault))[0]).split())
