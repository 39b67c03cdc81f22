"""A stored file that can be read in any order, for readers of formats that keep their table of contents at the end."""

import io

from server.kit.artifacts.store import ArtifactStore


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
