"""Our own recordings: a `.npz` archive, version 1, that needs no pickle; and their journal while they are made.

`demonstration.json` holds the format's version and the behavior's spec; every column is one member, named as
in `Demonstration`: `observations/0.npy`, ..., `final_observations/0.npy`, ..., `rewards.npy`, .... The optional ones
are missing where they are None. `numpy.load(path, allow_pickle=False)["rewards"]` works.

Nothing in a file is trusted: sizes are checked against the archive's own table before memory is asked for.

A kill loses at most the running episode. Every flush is appended to `FILE.journal`; when that has outgrown `FILE`, both
become a new `FILE`. So each byte is written a handful of times, however long the recording, and between two flushes the
two files together are complete:

    frame = sequence number, length, CRC-32 (little-endian: 8, 8 and 4 bytes), then a whole `.npz` of that length

`FILE` says how many flushes it contains. A frame that it contains already (a kill came between the two steps of joining
them) is skipped, and so is half a frame at the end of the journal.
"""

import io
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf import json_format

from ludus.demonstrations.archives import DAMAGED, content, opened
from ludus.demonstrations.demonstration import (
    OPTIONAL_COLUMNS,
    ROW_COLUMNS,
    Demonstration,
    DemonstrationError,
    check_fit,
    merge,
)
from ludus.paths import AnyPath, replaced
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import Array
from ludus.protocol.codes import ProtocolError
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import spec_from_message, spec_to_message

MAGIC: Final = b"PK\x03\x04"
FORMAT: Final = "ludus-demonstration"
VERSION: Final = 1
HEADER: Final = "demonstration.json"
MAX_HEADER_BYTES: Final = 1 << 20

_COLUMNS: Final = (*ROW_COLUMNS, "starts", "from_start")
_PER_OBSERVATION: Final = ("observations", "final_observations")
_NO_HEADER: Final = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError)
"""Errors of numpy for an invalid header of an array, which it evaluates as a literal of Python."""


def encode(demonstration: Demonstration, flushes: int = 0) -> bytes:
    """Render a file. `flushes`: how much of a journal it contains."""
    message = json_format.MessageToDict(spec_to_message(demonstration.spec))
    header = {"format": FORMAT, "version": VERSION, "flushes": flushes, "spec": message}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(_member(HEADER), json.dumps(header, indent=2))
        for name in (*_COLUMNS, *OPTIONAL_COLUMNS):
            if getattr(demonstration, name) is not None:
                _write(archive, name, getattr(demonstration, name))
        for name in _PER_OBSERVATION:
            for index, values in enumerate(getattr(demonstration, name)):
                _write(archive, f"{name}/{index}", values)
    return file.getvalue()


def decode(file: bytes, *, max_bytes: int) -> tuple[Demonstration, int]:
    """Return the demonstration in a file, and its `flushes`. Raises `DemonstrationError`."""
    try:
        with opened(io.BytesIO(file)) as archive:
            return _decode(archive, max_bytes)
    except DemonstrationError:
        raise
    except DAMAGED as error:
        raise DemonstrationError(
            f"the archive is damaged or incomplete ({error}); copy or record it again", position=None
        ) from None


def _decode(archive: zipfile.ZipFile, max_bytes: int) -> tuple[Demonstration, int]:
    sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    if HEADER not in sizes:
        raise DemonstrationError(f"it is an archive without {HEADER}, so no recording of ours")
    total = sum(sizes.values())
    if total > max_bytes:
        raise DemonstrationError(f"it decodes to {total:,} bytes, more than the {max_bytes:,} that are allowed here")
    spec, flushes = _header(archive, sizes[HEADER])
    names = [*_COLUMNS, *(name for name in OPTIONAL_COLUMNS if f"{name}.npy" in sizes)]
    columns: dict[str, Any] = {name: _read(archive, name, sizes) for name in names}
    for name in _PER_OBSERVATION:
        columns[name] = tuple(_read(archive, f"{name}/{index}", sizes) for index in range(len(spec.observations)))
    return Demonstration(spec=spec, **columns), flushes


def _header(archive: zipfile.ZipFile, size: int) -> tuple[BehaviorSpec, int]:
    if size > MAX_HEADER_BYTES:
        raise DemonstrationError(
            f"{HEADER} has {size:,} bytes; no recording of ours has more than {MAX_HEADER_BYTES:,}"
        )
    try:
        header = json.loads(content(archive, HEADER))
        if header["format"] != FORMAT:
            raise DemonstrationError(f"{HEADER} names the format {header['format']!r}, not {FORMAT!r}")
        if header["version"] != VERSION:
            raise DemonstrationError(
                f"it has version {header['version']!r} of the format, this program reads version {VERSION}; update it"
            )
        spec = spec_from_message(json_format.ParseDict(header["spec"], pb.BehaviorSpec()))
        return spec, int(header["flushes"])
    except (KeyError, TypeError, RecursionError, json.JSONDecodeError, json_format.ParseError, ProtocolError) as error:
        raise DemonstrationError(f"{HEADER} is invalid: {error!r}") from None


def _write(archive: zipfile.ZipFile, name: str, values: Array) -> None:
    array = io.BytesIO()
    np.lib.format.write_array(array, np.ascontiguousarray(values), allow_pickle=False)
    archive.writestr(_member(f"{name}.npy"), array.getvalue())


def _read(archive: zipfile.ZipFile, name: str, sizes: dict[str, int]) -> Array:
    """Read an array; its header must not announce more than the archive holds."""
    member = f"{name}.npy"
    if member not in sizes:
        raise DemonstrationError(f"{member} is missing in the archive")
    with archive.open(member) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            if version != (1, 0):
                raise DemonstrationError(f"{member} has version {version} of numpy's format, not (1, 0)")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        except _NO_HEADER as error:
            raise DemonstrationError(f"{member} is no array: {error}") from None
        if dtype.hasobject or fortran or dtype.kind not in "biuf":
            raise DemonstrationError(
                f"{member} holds {dtype}, Fortran order {fortran}; plain numbers in C order are read"
            )
        count = prod(map(int, shape))
        expected = sizes[member] - stream.tell()
        if min(shape, default=0) < 0 or count * dtype.itemsize != expected:
            raise DemonstrationError(f"{member} says shape {shape} of {dtype}, but holds {expected:,} bytes")
        numbers = stream.read(expected)
    values: Array = np.frombuffer(numbers, dtype).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def _member(name: str) -> zipfile.ZipInfo:
    """Return a member whose date is always the same: equal demonstrations give equal files."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


_FRAME = struct.Struct("<QQI")
_UNLIMITED = 1 << 62


class Recorder:
    """Writes a recording. Where the file exists the recording is continued."""

    def __init__(self, path: AnyPath) -> None:
        """Raise `DemonstrationError` if there is a file that is no recording of ours."""
        self._path = Path(path)
        self._journal = journal_of(self._path)
        recorded, self._flushes = read_recording(self._path, _UNLIMITED)
        self._spec = None if recorded is None else recorded.spec
        """Spec of the first episodes, which new ones must fit."""
        self.close()

    def flush(self, episodes: Sequence[Demonstration]) -> None:
        """Write these episodes: after this a kill does not lose them."""
        demonstration = merge(episodes)
        self._spec = self._spec or demonstration.spec
        check_fit(demonstration.spec, self._spec, whose=f"the recording {self._path}")
        archive = encode(demonstration)
        with self._journal.open("ab") as file:
            file.write(_FRAME.pack(self._flushes, len(archive), zlib.crc32(archive)) + archive)
        self._flushes += 1
        if not self._path.exists() or self._journal.stat().st_size > self._path.stat().st_size:
            self.close()

    def close(self) -> None:
        """Join the journal with the file. More may be recorded afterwards."""
        if not self._journal.exists():
            return
        recorded, flushes = read_recording(self._path, _UNLIMITED)
        if recorded is not None:
            with replaced(self._path, 0o644) as file:
                file.write(encode(recorded, flushes))
        self._journal.unlink()


def journal_of(path: Path) -> Path:
    """Return the path of a recording's journal."""
    return path.with_name(f"{path.name}.journal")


def read_recording(path: Path, max_bytes: int) -> tuple[Demonstration | None, int]:
    """Return a recording, with its journal if it was interrupted, and its number of flushes; None without any file.

    Raises `DemonstrationError`.
    """
    # The journal first: if a recorder joins both meanwhile, its frames are found in the file.
    frames = list(_frames(journal_of(path)))
    parts, flushes = [], 0
    if path.exists():
        demonstration, flushes = decode(path.read_bytes(), max_bytes=max_bytes)
        parts.append(demonstration)
    for number, archive in frames:
        if number >= flushes:
            parts.append(decode(archive, max_bytes=max_bytes)[0])
            flushes = number + 1
    return (merge(parts) if parts else None), flushes


def _frames(journal: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the frames that were written completely."""
    written = journal.read_bytes() if journal.exists() else b""
    start = 0
    while start + _FRAME.size <= len(written):
        number, length, checksum = _FRAME.unpack_from(written, start)
        start += _FRAME.size + length
        frame = written[start - length : start]
        if start > len(written) or zlib.crc32(frame) != checksum:
            return
        yield number, frame
