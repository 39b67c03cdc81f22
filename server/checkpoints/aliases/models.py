"""Aliases: names that people and pipelines give checkpoints, and move."""

from sqlalchemy import ForeignKey, Integer, PrimaryKeyConstraint, String
from sqlalchemy.orm import Mapped, column_property, mapped_column

from server.kit.db.base import Base, Timestamp, ordered_text
from server.kit.db.projects import DEFAULT, Owned


class CheckpointAlias(Owned, Base):
    """One name in a project. Retention never removes the checkpoint that it stands for."""

    __tablename__ = "checkpoint_aliases"

    name: Mapped[str] = mapped_column(ordered_text(200), primary_key=True)
    project: Mapped[str] = mapped_column(String(64), primary_key=True, default=DEFAULT, server_default=DEFAULT)
    checkpoint_id: Mapped[str] = mapped_column(String(40), ForeignKey("checkpoints.id", ondelete="CASCADE"), index=True)
    version: Mapped[int] = mapped_column(Integer)
    """Counts the moves from 1."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    moved_at: Mapped[float] = mapped_column(Timestamp)

    key = column_property(project + "/" + name)
    """Distinguishes equal names where the rows of all projects are listed."""

    __table_args__ = (PrimaryKeyConstraint("name", "project"),)
