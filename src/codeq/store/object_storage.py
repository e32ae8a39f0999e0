"""Files in a directory, or in S3, Google Cloud Storage or Azure, through obstore: the one place that knows it."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from codeq.distribution import missing_package
from codeq.domain.errors import CodeqError, InvalidRequest, StoreFull, StoreUnavailable
from codeq.domain.limits import DISK_RESERVE_BYTES
from codeq.store.objects import Content, ObjectMissing, StoredObject

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "file")
LIST_PAGE = 500
CALL_S_MAX = 60.0
"""How long a request to an object store may take: a part of 8 MB at 140 KB a second."""
RETRY_S_MAX = 20.0
"""How long a request is repeated while an object store fails; then the caller gets 503, and may try again."""
WRITES_MAX = 2
"""Files that are written to a directory at once. More are not faster on one disk, and the tasks on the same one wait
for all of them: a file system that forces a log forces what else was written meanwhile."""
_UNFINISHED = re.compile(r"#[0-9]+\Z")
"""Ends the name of a file that the library is writing. It does not list them."""
_NO_RANGES = "Received non-partial response"
_NO_ROOM = ("os error 28", "os error 122", "EntityTooLarge", "QuotaExceeded")
_NO_BUCKET = ("NoSuchBucket", "bucket does not exist", "ContainerNotFound")
"""What S3, Google Cloud Storage and Azure say of a missing bucket, with the status of a missing object."""


def open_objects(url: str) -> "BucketObjects":
    """Opens the object store at `s3://bucket/prefix`, `gs://`, `az://` or `file:///directory`, without a request.

    Credentials and regions come from the environment, by the names that each store's own tools use.
    """
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise InvalidRequest(f"artifacts.url begins with s3://, gs://, az:// or file://, not {url[:80]!r}")
    if scheme == "file":
        return DirectoryObjects(_directory(url))
    obstore = _obstore()
    timeouts = {"timeout": timedelta(seconds=CALL_S_MAX), "connect_timeout": timedelta(seconds=5)}
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"):
        timeouts["allow_http"] = True  # type: ignore[assignment]
    try:
        store = obstore.store.from_url(
            url,
            client_options=timeouts,
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=RETRY_S_MAX)},
        )
    except (obstore.exceptions.BaseError, ValueError, TypeError) as fault:
        raise InvalidRequest(f"artifacts.url cannot be used: {_first_line(fault)}") from None
    return BucketObjects(store)


def _directory(url: str) -> Path:
    """Refuses `file://data/files`, which is /files on a host called data."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or len(parts.path) < 2:
        raise InvalidRequest(f"artifacts.url names a directory from the root, as file:///mnt/codeq, not {url[:80]!r}")
    return Path(unquote(parts.path))


async def start_threads() -> None:
    """Has the library start the threads that its calls run on. It would do so at the first call, and panic if the
    process has no free descriptor then."""
    obstore = _obstore()
    await obstore.list_with_delimiter_async(obstore.store.MemoryStore())


class BucketObjects:
    """Objects of a bucket."""

    def __init__(self, store: "ObjectStore") -> None:
        self._store = store

    async def put(self, key: str, content: Content) -> None:
        with self._faults():
            # Without multipart: what a broken one leaves behind is invisible and costs money until somebody cleans up.
            await _obstore().put_async(self._store, key, content, use_multipart=False)

    async def read(self, key: str, start: int, end: int) -> bytes:
        obstore = _obstore()
        with self._faults():
            try:
                found = await obstore.get_range_async(self._store, key, start=start, end=end)
            except obstore.exceptions.GenericError as fault:
                if _NO_RANGES not in str(fault):
                    raise
                # Some servers that speak S3 answer with the whole object, which has 8 MB at most.
                whole = await (await obstore.get_async(self._store, key)).bytes_async()
                found = whole[start:end]
            except FileNotFoundError as fault:
                if any(sign in str(fault) for sign in _NO_BUCKET):
                    raise
                raise ObjectMissing(_first_line(fault)) from None
            content: bytes = found.to_bytes()
            return content

    async def list(self, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        pages = _obstore().list(self._store, prefix or None, chunk_size=LIST_PAGE)
        while True:
            with self._faults():
                try:
                    page = await anext(pages)
                except StopAsyncIteration:
                    return
            yield [StoredObject(each["path"], each["size"], each["last_modified"].timestamp()) for each in page]

    async def delete(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        with self._faults():
            try:
                await _obstore().delete_async(self._store, list(keys))
            except FileNotFoundError:
                for key in keys:
                    with contextlib.suppress(FileNotFoundError):
                        await _obstore().delete_async(self._store, key)

    async def remove_unfinished(self, before_s: float) -> int:  # noqa: ARG002
        return 0

    @contextlib.contextmanager
    def _faults(self) -> Any:
        """Turns the errors of the library into those of codeQ. Their texts have paths and are for the log only. What is
        not found here is the bucket or directory: that of an object is for the call that asked for it."""
        try:
            yield
        except (_obstore().exceptions.BaseError, OSError, ValueError) as fault:
            raise fault_of(str(fault)) from None


class DirectoryObjects(BucketObjects):
    """Objects as files below a directory, which is created with the first of them, and again if somebody removes it."""

    def __init__(self, root: Path) -> None:
        """The library writes a file, renames it, and does not force it to disk: that is done here."""
        self._root = root.absolute()
        self._made: ObjectStore | None = None
        self._writing = asyncio.Semaphore(WRITES_MAX)

    @property
    def _store(self) -> "ObjectStore":  # type: ignore[override]
        if self._made is None:
            self._make_root()
            self._made = _obstore().store.LocalStore(self._root, automatic_cleanup=True)
        return self._made

    def _make_root(self) -> None:
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as fault:
            raise fault_of(f"cannot make {self._root}: {fault}") from None

    async def put(self, key: str, content: Content) -> None:
        async with self._writing:
            with self._faults():
                await asyncio.to_thread(self._check_room, len(content))
            await super().put(key, content)
            with self._faults():
                await asyncio.to_thread(self._force, key)

    async def list(self, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        if not self._root.exists():
            return
        async for page in super().list(prefix):
            yield page

    async def remove_unfinished(self, before_s: float) -> int:
        with self._faults():
            return await asyncio.to_thread(self._remove_unfinished, before_s)

    def _remove_unfinished(self, before_s: float) -> int:
        removed = 0
        for folder, _, names in os.walk(self._root):
            for name in names:
                place = Path(folder, name)
                if _UNFINISHED.search(name):
                    with contextlib.suppress(FileNotFoundError):
                        if place.lstat().st_mtime < before_s:
                            place.unlink()
                            removed += 1
        return removed

    def _check_room(self, size: int) -> None:
        """Leaves the queue on the same disk what it needs to finish its work."""
        self._make_root()
        if shutil.disk_usage(self._root).free < DISK_RESERVE_BYTES + size:
            raise OSError(28, "No space left on device (os error 28)")

    def _force(self, key: str) -> None:
        """Forces the file to disk, and the directories that name it."""
        place = self._root / key
        while True:
            descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if place == self._root.parent:
                return
            place = place.parent


def fault_of(text: str) -> CodeqError:
    if any(sign in text for sign in _NO_ROOM):
        return StoreFull("there is no room for artifacts")
    return StoreUnavailable(f"the store of artifacts does not answer as it should: {_first_line(text)}")


def _first_line(fault: object) -> str:
    return str(fault).partition("\n")[0][:300]


def _obstore() -> Any:
    try:
        import obstore  # noqa: PLC0415 - large, and only those who use artifacts need it
        import obstore.exceptions  # noqa: PLC0415
        import obstore.store  # noqa: PLC0415
    except ModuleNotFoundError as fault:
        raise InvalidRequest(missing_package("storing artifacts", fault.name, "artifacts")) from None
    return obstore
