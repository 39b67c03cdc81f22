"""Writes recordings during play, so that a kill loses at most the running episode.

Every flush is appended to `FILE.journal`; when that has outgrown `FILE`, both become a new `FILE`. So each byte is
written a handful of times, however long the recording, and between two flushes the two files together are complete:

    frame = sequence number, length, CRC-32 (little-endian: 8, 8 and 4 bytes), then a whole `.npz` of that length

`FILE` says how many flushes it contains. A frame that it contains already (a kill came between the two steps of joining
them) is skipped, and so is half a frame at the end of the journal.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ludus.demonstrations import recording
from ludus.demonstrations.demonstration import Demonstration, DemonstrationError, check_fit, merge
from ludus.paths import AnyPath
from ludus.replacing import replaced

_FRAME = struct.Struct("<QQI")
_UNLIMITED = 1 << 62


class Recorder:
    """Writes a recording. Where the file exists the recording is continued."""

    def __init__(self, path: AnyPath) -> None:
        """Raise `DemonstrationError` if there is a file that is no recording of ours."""
        self._path = path = Path(path)
        self._journal = journal_of(path)
        found, flushes = _together(path, _UNLIMITED)
        self._spec = None if found is None else found.spec
        """Spec of the first episodes, which new ones must fit."""
        self._flushes = flushes
        """Number of flushes, in this process and before."""
        self.close()

    def flush(self, episodes: Sequence[Demonstration]) -> None:
        """Write these episodes: after this a kill does not lose them."""
        demonstration = merge(episodes)
        if self._spec is None:
            self._spec = demonstration.spec
        check_fit(demonstration.spec, self._spec, whose=f"the recording {self._path}")
        content = recording.encode(demonstration)
        with self._journal.open("ab") as file:
            file.write(_FRAME.pack(self._flushes, len(content), zlib.crc32(content)) + content)
        self._flushes += 1
        if not self._path.exists() or self._journal.stat().st_size > self._path.stat().st_size:
            self.close()

    def close(self) -> None:
        """Join the journal with the file. More may be recorded afterwards."""
        if not self._journal.exists():
            return
        found, flushes = _together(self._path, _UNLIMITED)
        if found is not None:
            with replaced(self._path, 0o644) as file:
                file.write(recording.encode(found, flushes))
        self._journal.unlink()


def journal_of(path: Path) -> Path:
    """Return the path of a recording's journal."""
    return path.with_name(f"{path.name}.journal")


def read_recording(path: Path, max_bytes: int) -> Demonstration:
    """Read a recording, with its journal if it was interrupted. Raises `DemonstrationError`."""
    found, _ = _together(path, max_bytes)
    if found is None:
        raise DemonstrationError("there is no such file", path)
    return found


def _together(path: Path, max_bytes: int) -> tuple[Demonstration | None, int]:
    """Return everything recorded so far, and the number of flushes that it took."""
    # The journal first: if a recorder joins both meanwhile, its frames are found in the file.
    frames = list(_frames(journal_of(path)))
    parts, flushes = [], 0
    if path.exists():
        demonstration, flushes = recording.decode(path.read_bytes(), max_bytes=max_bytes)
        parts.append(demonstration)
    for number, content in frames:
        if number >= flushes:
            parts.append(recording.decode(content, max_bytes=max_bytes)[0])
            flushes = number + 1
    return (merge(parts) if parts else None), flushes


def _frames(journal: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the frames that were written completely."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    at = 0
    while at + _FRAME.size <= len(content):
        number, length, checksum = _FRAME.unpack_from(content, at)
        frame = content[at + _FRAME.size : at + _FRAME.size + length]
        if len(frame) < length or zlib.crc32(frame) != checksum:
            return
        yield number, frame
        at += _FRAME.size + length
