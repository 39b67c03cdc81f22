"""Files that outlive an attempt: checkpoints, exported models, logs.

A path in the store is relative, with `/` between plain segments, and carries the run and the epoch
(`runs/run_01.../3/checkpoints/50000-2`), so that two attempts never write to the same place. What is published is
complete or not there at all: files are copied under a temporary name, synced, and appear by one rename.
"""

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from server.errors import ArtifactNotFound, InvalidArtifactPath, StorageFull

MAX_PATH = 500
MAX_SEGMENT = 200
"""Bytes; file systems allow 255."""
BLOCK = 1 << 20


@dataclass(frozen=True)
class FileRef:
    """One file of a published folder."""

    name: str
    """Relative to the folder's path, with `/`."""
    size: int
    """Bytes."""
    sha256: str
    """Lower-case hexadecimal."""


class ArtifactStore(Protocol):
    """Where artifacts live. All paths are relative to the store."""

    def publish(self, source: Path, path: str) -> list[FileRef]:
        """Store a file, or all files of a folder, under `path`; they are durable and complete when this returns.

        A folder's path must be new: publishing an equal folder again changes nothing, another one is an error. A single
        file replaces an older one of the same path. Raises StorageFull with nothing changed.
        """
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading. Raises ArtifactNotFound."""
        ...

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises ArtifactNotFound."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its files. What isn't there is no error."""
        ...

    def path_of(self, path: str) -> Path:
        """Return a local file that has the contents of `path`. Raises ArtifactNotFound."""
        ...


def check_path(path: str) -> str:
    """Return a path in the store unchanged. Raises InvalidArtifactPath when it could leave the store."""
    if len(path) > MAX_PATH or not all(_is_plain(segment) for segment in path.split("/")):
        raise InvalidArtifactPath(path)
    return path


def _is_plain(segment: str) -> bool:
    """Accept any name that people give to behaviors. Names with a leading dot are the store's own."""
    return (
        segment.isprintable()
        and segment == segment.strip()
        and not segment.startswith(".")
        and "\\" not in segment
        and 0 < len(segment.encode()) <= MAX_SEGMENT
    )


class FolderStore:
    """An ArtifactStore in a folder of a local (or shared POSIX) file system."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def publish(self, source: Path, path: str) -> list[FileRef]:
        """Store a file or a folder; see ArtifactStore."""
        target = self._root / check_path(path)
        temporary = target.parent / f".{secrets.token_hex(8)}.tmp"
        with _space(path, source):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                files = _copy(source, temporary)
                self._appear(temporary, target, files)
            finally:
                _remove(temporary)
            _sync_folders(target.parent, self._root)
        return files

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading. Raises ArtifactNotFound."""
        return self.path_of(path).open("rb")

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises ArtifactNotFound."""
        return self.path_of(path).stat().st_size

    def delete(self, path: str) -> None:
        """Remove a file or a folder. A folder disappears by one rename first, so that nobody meets half of it."""
        target = self._root / check_path(path)
        grave = target.parent / f".{secrets.token_hex(8)}.tmp"
        try:
            target.rename(grave)
        except FileNotFoundError:
            return
        _remove(grave)

    def path_of(self, path: str) -> Path:
        """Return the file in the folder. Raises ArtifactNotFound, also for what a symbolic link puts outside."""
        target = self._root / check_path(path)
        if not target.is_file() or not target.resolve().is_relative_to(self._root.resolve()):
            raise ArtifactNotFound(path)
        return target

    def _appear(self, temporary: Path, target: Path, files: list[FileRef]) -> None:
        if target.is_dir():
            if temporary.is_dir() and _list(target) == sorted(files, key=lambda file: file.name):
                return
            raise FileExistsError(errno.EEXIST, "an artifact folder never changes; use a new path", str(target))
        temporary.rename(target)


@contextmanager
def _space(path: str, source: Path) -> Iterator[None]:
    """Turn "no space left" and "quota exceeded" into StorageFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        files = source.rglob("*") if source.is_dir() else [source]
        raise StorageFull(path, sum(file.stat().st_size for file in files if file.is_file())) from error


def _copy(source: Path, target: Path) -> list[FileRef]:
    return _copy_folder(source, target) if source.is_dir() else [_copy_file(source, target, source.name)]


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
    found = []
    for item in folder.rglob("*"):
        if item.is_file():
            with item.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(FileRef(item.relative_to(folder).as_posix(), item.stat().st_size, digest))
    return sorted(found, key=lambda file: file.name)


def _sync_folders(folder: Path, root: Path) -> None:
    """Sync a folder and its parents up to the root, which may all be new."""
    while folder.is_relative_to(root):
        _sync(folder)
        folder = folder.parent


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
