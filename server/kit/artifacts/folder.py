"""Artifacts in a folder of a local (or shared POSIX) file system.

A published file is complete or not there at all: files are copied under a temporary name, synced, and appear by one
rename. Names with a leading dot are the store's own: what a kill leaves behind has one, and is swept away later.
"""

import errno
import hashlib
import io
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from server.kit.artifacts.store import BLOCK, FileRef, StoredFile, check_path, files_of
from server.kit.errors import ArtifactNotFound, StorageFull, StorageRefused, StorageUnavailable

AWAY: Final = frozenset(
    (
        *(errno.EIO, errno.EREMOTEIO, errno.ENXIO, errno.ENODEV),  # the disk fails, or is gone
        *(errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN),  # NFS, FUSE
        *(errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ECONNRESET),
        *(errno.EBUSY, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM),  # this host, for the moment
    )
)
"""Errors of a file system that pass, or may."""


class FolderStore:
    """An ArtifactStore in a folder of a local (or shared POSIX) file system."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def publish(self, source: Path, path: str) -> list[FileRef]:
        """Store a file or a folder; see ArtifactStore."""
        target = self._root / check_path(path)
        temporary = target.parent / f".{secrets.token_hex(8)}.tmp"
        with _translated_errors(path, lambda: sum(file.stat().st_size for _, file in files_of(source))):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder = source.is_dir()
                files = _copy_folder(source, temporary) if folder else [_copy_file(source, temporary, source.name)]
                if not target.is_dir():
                    temporary.rename(target)
                elif not folder or _list(target) != sorted(files, key=lambda file: file.name):
                    raise FileExistsError(errno.EEXIST, "an artifact folder never changes; use a new path", str(target))
            finally:
                _remove(temporary)
            for parent in target.parents:  # up to the root: they may all be new
                if not parent.is_relative_to(self._root):
                    break
                _sync(parent)
        return files

    def open(self, path: str, start: int = 0) -> io.BufferedReader:
        """Open a file for reading from a byte on. Raises ArtifactNotFound."""
        with _translated_errors(path, remedy="let this process read it"):
            try:
                file = self._file(path).open("rb", buffering=0)
            except FileNotFoundError:  # deleted since it was looked for
                raise ArtifactNotFound(path) from None
            file.seek(start)
            return io.BufferedReader(_Body(file, path))

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises ArtifactNotFound."""
        with _translated_errors(path, remedy="let this process read it"):
            return self._file(path).stat().st_size

    def download_url(self, path: str, size: int) -> None:
        """Return None: a folder has no address."""

    def delete(self, path: str) -> None:
        """Remove a file or a folder. A folder disappears by one rename first, so that no reader finds a part of it."""
        target = self._root / check_path(path)
        grave = target.parent / f".{secrets.token_hex(8)}.tmp"
        with _translated_errors(path):
            try:
                target.rename(grave)
            except (FileNotFoundError, NotADirectoryError):
                return
            _remove(grave)

    def files(self, path: str) -> Iterator[StoredFile]:
        """Yield every file below a folder."""
        for folder, _, names in self._walk(self._root / check_path(path)):
            for name in names:
                if name.startswith("."):
                    continue
                with _translated_errors(path), suppress(FileNotFoundError):  # deleted meanwhile
                    status = (folder / name).stat()
                    relative = (folder / name).relative_to(self._root).as_posix()
                    yield StoredFile(relative, status.st_size, status.st_mtime)

    def sweep(self, older_than: float) -> int:
        """Remove temporary files and folders, and graves, that were not written to for so many seconds."""
        swept = 0
        oldest = time.time() - older_than
        for folder, folders, names in os.walk(self._root):
            leftovers = [name for name in (*folders, *names) if name.startswith(".") and name.endswith(".tmp")]
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in leftovers:
                path = Path(folder, name)
                with _translated_errors(name), suppress(FileNotFoundError):
                    if max(item.stat().st_mtime for item in (path, *path.rglob("*"))) < oldest:
                        _remove(path)
                        swept += 1
        return swept

    def _file(self, path: str) -> Path:
        """Return a file in the folder. Raises ArtifactNotFound, also for what a symbolic link puts outside."""
        target = self._root / check_path(path)
        if not self._root.is_dir():  # not mounted: it says nothing about its files
            raise StorageUnavailable(f"there is no folder {self._root}")
        if not target.is_file() or not target.resolve().is_relative_to(self._root.resolve()):
            raise ArtifactNotFound(path)
        return target

    def _walk(self, top: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Walk through the folders that are published."""
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if not name.startswith(".")]
            yield Path(folder), folders, names


class _Body(io.RawIOBase):
    """A file's bytes. A disk that fails while they are read is an error of ours, too."""

    def __init__(self, file: io.FileIO, path: str) -> None:
        self._file = file
        self._path = path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        with _translated_errors(self._path):
            return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def _translated_errors(
    path: str, size: Callable[[], int] = int, remedy: str = "let this process write there"
) -> Iterator[None]:
    """Raise an error that an operator understands for no space, no right to read or write, and a disk that fails."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                raise StorageFull(path, size()) from error
            case errno.EACCES | errno.EPERM | errno.EROFS:
                of_one_file = error.errno != errno.EROFS
                raise StorageRefused(f"{what}: {error.filename}", remedy, of_one_file=of_one_file) from error
        if error.errno in AWAY:
            of_one_file = error.errno == errno.EIO
            raise StorageUnavailable(f"{what}: {error.filename or path}", of_one_file=of_one_file) from error
        raise


def _copy_folder(source: Path, target: Path) -> list[FileRef]:
    files = []
    target.mkdir()
    folders = [target]
    for item in sorted(source.rglob("*")):
        name = check_path(item.relative_to(source).as_posix())
        if item.is_dir():
            (target / name).mkdir()
            folders.append(target / name)
        elif item.is_file():
            files.append(_copy_file(item, target / name, name))
    for folder in reversed(folders):
        _sync(folder)
    return files


def _copy_file(source: Path, target: Path, name: str) -> FileRef:
    digest = hashlib.sha256()
    size = 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while block := reader.read(BLOCK):
            writer.write(block)
            digest.update(block)
            size += len(block)
        writer.flush()
        os.fsync(writer.fileno())
    return FileRef(name, size, digest.hexdigest())


def _list(folder: Path) -> list[FileRef]:
    """Describe the files of a published folder, by name."""
    files = []
    for item in folder.rglob("*"):
        if item.is_file():
            with item.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            files.append(FileRef(item.relative_to(folder).as_posix(), item.stat().st_size, digest))
    return sorted(files, key=lambda file: file.name)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
