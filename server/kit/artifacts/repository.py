"""Files that are given up: in the transaction that deletes, or replaces, the row that named them."""

from collections.abc import Collection

from sqlalchemy import String, delete, select
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.artifacts.store import MAX_PATH
from server.kit.db.base import Base, Timestamp
from server.kit.db.clock import now
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository, upsert


class GivenUpFile(Base):
    """A file, or a folder, of the artifact store that no row names any more. Its row goes when it is removed."""

    __tablename__ = "given_up_files"

    path: Mapped[str] = mapped_column(String(MAX_PATH), primary_key=True)
    given_up_at: Mapped[float] = mapped_column(Timestamp, index=True)


class GivenUpFileRepository(Repository):
    """Files that the controller removes after `LUDUS_STORAGE__PURGE_DELAY_SECONDS`.

    A copy of the database names files that are given up while it is made, or before the files are copied: they have to
    stay for as long as a backup takes.
    """

    def give_up(self, path: str) -> None:
        """Have a file, or a folder, removed later."""
        values = {"path": path, "given_up_at": now()}
        self._session.execute(upsert(self._session, GivenUpFile).values(values).on_conflict_do_nothing())

    def among(self, paths: Collection[str]) -> set[str]:
        """Return those of these paths that are given up and not removed yet."""
        given_up: set[str] = set()
        for part in parts(sorted(paths)):
            given_up.update(self._session.scalars(select(GivenUpFile.path).where(GivenUpFile.path.in_(part))))
        return given_up

    def due(self, limit: int, since_seconds: float) -> list[str]:
        """Return paths that were given up `since_seconds` ago, or earlier, the oldest first."""
        old = select(GivenUpFile.path).where(GivenUpFile.given_up_at <= now() - since_seconds)
        return list(self._session.scalars(old.order_by(GivenUpFile.given_up_at).limit(limit)))

    def removed(self, path: str) -> None:
        """Record that a file is removed."""
        self._session.execute(delete(GivenUpFile).where(GivenUpFile.path == path))
