"""The table of files that the controller removes from the artifact store."""

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.artifacts.store import MAX_PATH
from server.kit.db.base import Base, Timestamp


class GivenUpFile(Base):
    """A file, or a folder, of the artifact store that no row names any more. Its row goes when it is removed."""

    __tablename__ = "given_up_files"

    path: Mapped[str] = mapped_column(String(MAX_PATH), primary_key=True)
    given_up_at: Mapped[float] = mapped_column(Timestamp, index=True)
