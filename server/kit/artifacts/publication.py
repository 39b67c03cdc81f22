"""Files that are stored before their row is committed: one that gets no row does not stay."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from server.kit.artifacts.store import ArtifactStore

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
