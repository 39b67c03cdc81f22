"""Zip archives from strangers: opened where looking into them costs little, whatever they say of themselves.

Python's `zipfile` reads the whole table of contents before anybody can look at it, and makes an object of each entry:
a few megabytes can stand for gigabytes. An entry that is read as a whole is unpacked as a whole, however little the
table says that it holds. And what bzip2 or LZMA have packed is unpacked block by block, however little is asked for:
4 kB can be 4 GB. So the table's size is bounded, `content` reads what the table says, and such entries are refused.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

MAX_TABLE_BYTES: Final = 1 << 20
"""Of the table of contents: room for some 10,000 entries, which as objects take ten times as much."""
DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
"""What reading a damaged archive raises. (RuntimeError: it wants a password. ValueError: a name is not UTF-8.)"""
_READ: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


@contextmanager
def opened(file: Any) -> Iterator[zipfile.ZipFile]:
    """Open an archive: a raw or buffered binary file, which is closed with it. Raises what `DAMAGED` lists."""
    bounded = _Bounded(file)
    with bounded, zipfile.ZipFile(bounded) as archive:
        bounded.most = None
        for entry in archive.infolist():
            if entry.compress_type not in _READ:
                raise zipfile.BadZipFile(f"{entry.filename!r} is packed by method {entry.compress_type}, not deflated")
        yield archive


def content(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return what an entry holds, as many bytes as the table of contents says. Raises what `DAMAGED` lists."""
    with archive.open(name) as entry:
        return entry.read(archive.getinfo(name).file_size)


class _Bounded(io.BufferedReader):
    """A file of which no more than `most` bytes are read at once."""

    most: int | None = MAX_TABLE_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if self.most is not None and size is not None and size > self.most:
            raise zipfile.BadZipFile(f"its table of contents has {size:,} bytes; no more than {self.most:,} are read")
        return super().read(size)
