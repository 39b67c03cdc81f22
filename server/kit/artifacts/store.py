"""The interface of artifact stores."""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from server.kit.errors import InvalidArtifactPath

MAX_PATH = 500
MAX_SEGMENT = 200
"""Bytes; file systems allow 255."""
BLOCK = 1 << 20
"""Bytes that are copied and hashed at a time."""


@dataclass(frozen=True)
class FileRef:
    """One file of a published folder."""

    name: str
    """Relative to the folder's path, with `/`."""
    size: int
    """Bytes."""
    sha256: str
    """Lower-case hexadecimal."""


@dataclass(frozen=True)
class StoredFile:
    """One file that a store holds."""

    path: str
    size: int
    """Bytes."""
    modified: float
    """Seconds since 1970, on the store's clock."""


DOWNLOAD_SECONDS = 900
"""How long the address of `download_url` is valid. A download that has begun by then goes on."""


class ArtifactStore(Protocol):
    """Where artifacts live. All paths are relative to the store.

    Every method may raise StorageUnavailable (the store doesn't answer; trying again can help) or StorageRefused (it
    answers, and what it says an operator has to settle). Safe to use from several threads.
    """

    def publish(self, source: Path, path: str) -> list[FileRef]:
        """Store a file, or all files of a folder, under `path`; they are durable and complete when this returns.

        A folder's path must be new: publishing an equal folder again changes nothing, another one is a FileExistsError.
        A single file replaces an older one of the same path. Raises StorageFull with nothing published.
        """
        ...

    def open(self, path: str, start: int = 0) -> BufferedIOBase:
        """Open a file for reading from the byte `start` on. Raises ArtifactNotFound."""
        ...

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises ArtifactNotFound."""
        ...

    def download_url(self, path: str, size: int) -> str | None:
        """Return an address from which anybody can download a file of this size for DOWNLOAD_SECONDS; None where
        clients have to download it through the api. The file is not looked for.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its files. A missing one is no error."""
        ...

    def files(self, path: str) -> Iterator[StoredFile]:
        """Yield every file below a folder, in no order. A folder that isn't there has none."""
        ...

    def sweep(self, older_than: float) -> int:
        """Remove what publications that were killed have left behind, if it is so many seconds old; return how much."""
        ...


def fetch(store: ArtifactStore, path: str, target: Path) -> str:
    """Copy a stored file to `target`, whose folder exists; return its SHA-256. Raises ArtifactNotFound."""
    digest = hashlib.sha256()
    with store.open(path) as reader, target.open("wb") as writer:
        while block := reader.read(BLOCK):
            writer.write(block)
            digest.update(block)
    return digest.hexdigest()


def digest_of(store: ArtifactStore, path: str) -> str:
    """Return the SHA-256 of a stored file. Raises ArtifactNotFound."""
    with store.open(path) as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def check_path(path: str) -> str:
    """Return a path in the store unchanged. Raises InvalidArtifactPath when it could leave the store."""
    if len(path) > MAX_PATH or not all(_is_plain(segment) for segment in path.split("/")):
        raise InvalidArtifactPath(path)
    return path


def files_of(source: Path) -> list[tuple[str, Path]]:
    """Return the files of a folder with their names in the store, or a single file with its own, by name."""
    if not source.is_dir():
        return [(source.name, source)]
    files = sorted(item for item in source.rglob("*") if item.is_file())
    return [(check_path(item.relative_to(source).as_posix()), item) for item in files]


def _is_plain(segment: str) -> bool:
    """Accept any name that people give to behaviors. Names with a leading dot are the store's own."""
    return (
        segment.isprintable()
        and segment == segment.strip()
        and not segment.startswith(".")
        and "\\" not in segment
        and 0 < len(segment.encode()) <= MAX_SEGMENT
    )


Inspected = TypeVar("Inspected")


@dataclass
class Stored(Generic[Inspected]):
    """A file in the artifact store whose row is not yet committed."""

    id: str
    path: str
    """As the row has it."""
    inspected: Inspected
    """The result of the inspection of the file."""
    kept: bool = False

    def keep(self) -> None:
        """Keep the file: its row is committed."""
        self.kept = True


@contextmanager
def published(store: ArtifactStore, file: Path, target: str, stored: Stored[Inspected]) -> Iterator[Stored[Inspected]]:
    """Store a file in a new folder for the length of the block; it stays if `keep` is called meanwhile.

    Outside the transaction that inserts the row, which is short: copying takes a while.
    """
    store.publish(file, target)
    try:
        yield stored
    finally:
        if not stored.kept:
            store.delete(target.rpartition("/")[0])


class SeekableFile(io.RawIOBase):
    """Reads ranges of a stored file: one request to the store for each. Raises what `ArtifactStore.open` raises."""

    def __init__(self, store: ArtifactStore, path: str, size: int) -> None:
        """`size` is the file's, in bytes."""
        super().__init__()
        self._store = store
        self._path = path
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer only at the end of the file; by default all that are left."""
        remaining = max(0, self._size - self._position)
        count = remaining if size < 0 else min(size, remaining)
        if not count:
            return b""
        with self._store.open(self._path, self._position) as file:
            data = file.read(count)
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, for `io.BufferedReader`; return how many bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
