"""The files of demonstrations: looked into before they are kept, merged, thinned. No database."""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from ludus.demonstrations import Demonstration, DemonstrationError, inspect, merge, read, thin, write
from ludus.protocol.spec import BehaviorSpec
from ludus.schemas import DemonstrationStatistics
from server.demonstrations.refs import DemonstrationInvalid, DemonstrationRef
from server.kit.artifacts.store import ArtifactStore, Stored, fetch, published
from server.kit.db.ids import new_id

SUFFIXES: Final = {"mlagents": ".demo", "ludus": ".npz"}
"""Format -> how a file of it is called."""
ARCHIVE: Final = b"PK\x03\x04"
"""First bytes of Ludus' own recordings; no recording of ML-Agents begins with them."""


@dataclass(frozen=True)
class Inspected:
    """The content of a file, as inspected."""

    spec: BehaviorSpec
    format: str
    summary: DemonstrationStatistics
    size: int
    sha256: str


class DemonstrationFiles:
    """Reads and writes files of demonstrations; `decoded_bytes` bounds the memory that one request may take."""

    def __init__(self, store: ArtifactStore, decoded_bytes: int) -> None:
        self._store = store
        self._decoded_bytes = decoded_bytes

    def inspect(self, file: Path) -> Inspected:
        """Read a file completely. Raises DemonstrationInvalid if it is none, or damaged, or too large once decoded."""
        demonstration = self._read(file, self._decoded_bytes)
        with file.open("rb") as content:
            is_ludus = content.read(len(ARCHIVE)) == ARCHIVE
            content.seek(0)
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        return Inspected(
            demonstration.spec, "ludus" if is_ludus else "mlagents", inspect(demonstration), file.stat().st_size, digest
        )

    def merge(self, sources: Sequence[DemonstrationRef], target: Path) -> None:
        """Write all pieces of several demonstrations to one file. Raises DemonstrationInvalid, ArtifactNotFound."""
        parts: list[Demonstration] = []
        max_bytes = self._decoded_bytes
        for source in sources:
            parts.append(self._stored(source, max_bytes))
            for value in vars(parts[-1]).values():
                columns = value if isinstance(value, tuple) else [value]
                max_bytes -= sum(column.nbytes for column in columns if isinstance(column, np.ndarray))
        try:
            write(merge(parts), target)
        except DemonstrationError as error:
            raise DemonstrationInvalid(error.problem) from error

    def subsample(self, source: DemonstrationRef, target: Path, **wanted: int | None) -> None:
        """Write a part, as `ludus.demonstrations.thin` takes it, to a file.

        Raises DemonstrationInvalid, ArtifactNotFound.
        """
        demonstration = self._stored(source, self._decoded_bytes)
        try:
            write(thin(demonstration, **wanted), target)
        except DemonstrationError as error:
            raise DemonstrationInvalid(error.problem) from error

    def publish(self, file: Path, inspected: Inspected) -> AbstractContextManager[Stored[Inspected]]:
        """Store a file under a new id for the length of the block; see `published`."""
        demonstration_id = new_id("dem")
        path = f"demonstrations/{demonstration_id}/{demonstration_id}{SUFFIXES[inspected.format]}"
        return published(self._store, file, path, Stored(demonstration_id, path, inspected))

    def _stored(self, source: DemonstrationRef, max_bytes: int) -> Demonstration:
        """Read a demonstration that is kept, through a file on this host."""
        with TemporaryDirectory(prefix="ludus-demonstration-") as folder:
            file = Path(folder, source.path.rpartition("/")[2])
            fetch(self._store, source.path, file)
            return self._read(file, max_bytes, source.id)

    def _read(self, file: Path, max_bytes: int, name: str = "") -> Demonstration:
        try:
            return read(file, max_bytes=max_bytes)
        except DemonstrationError as error:
            raise DemonstrationInvalid(error.problem, name, error.position) from error
