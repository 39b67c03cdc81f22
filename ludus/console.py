"""Standard output and error that never end the work of a process.

A terminal may be gone, a pipe may have lost its reader (`| head`), a disk may be full, and an encoding may lack a
character. What cannot be written is lost, and is remembered; the process goes on.
"""

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, Final, TextIO

STANDARD: Final = {"stdout": 1, "stderr": 2}


class _Tolerant(io.RawIOBase):
    """Writes to a file, and drops what the file does not take."""

    def __init__(self, file: io.FileIO) -> None:
        self.error: OSError | None = None
        """The newest."""
        self._file = file

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()

    def write(self, data: Any, /) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            return memoryview(data).nbytes


def tolerate() -> None:
    """Make standard output and error of this process tolerant. Done again, or for streams of tests, it does nothing."""
    for name, descriptor in STANDARD.items():
        stream: TextIO | None = getattr(sys, name)
        if stream is None:  # the process was started with the descriptor closed
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  open until the end
            continue
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)  # Python's -u leaves the buffer out
        if not isinstance(raw, io.FileIO) or raw.fileno() != descriptor:
            continue
        stream.flush()
        # Another stream over the same descriptor, which the old one must not close when it is collected.
        tolerant = _Tolerant(io.FileIO(descriptor, "w", closefd=False))
        lines = buffer is raw or stream.isatty() or name == "stderr"
        setattr(
            sys,
            name,
            io.TextIOWrapper(io.BufferedWriter(tolerant), stream.encoding, "backslashreplace", line_buffering=lines),
        )


def lost_output() -> OSError | None:
    """Return the error with which standard output was lost; None while all of it was written."""
    try:
        sys.stdout.flush()
    except OSError as error:  # of a stream that is not tolerant
        return error
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.error if isinstance(raw, _Tolerant) else None


def reader_has_gone() -> bool:
    """Whether standard output is a pipe that nothing reads any more, or a terminal that is gone."""
    error = lost_output()
    return error is not None and error.errno in {errno.EPIPE, errno.EIO}
