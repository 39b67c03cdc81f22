"""Zip archives from untrusted sources: opened with a bound on memory and time.

Python's `zipfile` reads the whole table of contents before it can be inspected, and makes an object of each entry: a
few megabytes can become gigabytes. An entry that is read as a whole is unpacked as a whole, also if the table says that
it is small. bzip2 and LZMA unpack whole blocks for each read: 4 kB can be 4 GB. So the size of the table is bounded,
`content` reads as many bytes as the table says, and entries of bzip2 and LZMA are refused.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

MAX_TABLE_BYTES: Final = 1 << 20
"""Maximum size of the table of contents: about 10,000 entries, which as objects take ten times as much."""
DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    NotImplementedError,  # zipfile: an unknown compression, version or feature
    RuntimeError,  # an entry with a password
    ValueError,  # a name that is not UTF-8
)
_READ: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


@contextmanager
def opened(file: Any) -> Iterator[zipfile.ZipFile]:
    """Open an archive: a raw or buffered binary file, which is closed with it. Raises the errors of `DAMAGED`."""
    bounded = _Bounded(file)
    with bounded, zipfile.ZipFile(bounded) as archive:
        bounded.limit = None
        for entry in archive.infolist():
            if entry.compress_type not in _READ:
                raise zipfile.BadZipFile(f"{entry.filename!r} is packed by method {entry.compress_type}, not deflated")
        yield archive


def content(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return as many bytes of an entry as the table of contents says. Raises the errors of `DAMAGED`."""
    with archive.open(name) as entry:
        return entry.read(archive.getinfo(name).file_size)


class _Bounded(io.BufferedReader):
    """A file that refuses to read more than `limit` bytes at once."""

    limit: int | None = MAX_TABLE_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if self.limit is not None and size is not None and size > self.limit:
            raise zipfile.BadZipFile(f"its table of contents has {size:,} bytes; no more than {self.limit:,} are read")
        return super().read(size)
