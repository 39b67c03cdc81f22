"""Aliases: names that people and pipelines give checkpoints, and move."""

from typing import Any

from sqlalchemy import ForeignKey, Integer, PrimaryKeyConstraint, ScalarSelect, String, select
from sqlalchemy.orm import InstrumentedAttribute, Mapped, column_property, mapped_column

from server.checkpoints.models import Checkpoint
from server.kit.db.base import Base, Timestamp, ordered_text
from server.kit.db.projects import DEFAULT, Owned


class AliasMove(Owned, Base):
    """One move of an alias: to a checkpoint, or its deletion. Rows never change, and outlive alias and checkpoint."""

    __tablename__ = "alias_moves"

    alias: Mapped[str] = mapped_column(ordered_text(200), primary_key=True)
    project: Mapped[str] = mapped_column(String(64), primary_key=True, default=DEFAULT, server_default=DEFAULT)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts the moves from 1; goes on after a deletion."""
    checkpoint_id: Mapped[str | None] = mapped_column(String(40))
    """None: the alias was deleted."""
    moved_at: Mapped[float] = mapped_column(Timestamp)
    moved_by: Mapped[str | None] = mapped_column(String(200))
    """Name of the principal; None in moves from before this table."""

    __table_args__ = (PrimaryKeyConstraint("alias", "project", "version"),)


def _of_checkpoint(column: InstrumentedAttribute[Any], checkpoint_id: Mapped[str]) -> ScalarSelect[Any]:
    return select(column).where(Checkpoint.id == checkpoint_id).correlate_except(Checkpoint).scalar_subquery()


class CheckpointAlias(Owned, Base):
    """One name in a project. Retention never removes the checkpoint that it stands for."""

    __tablename__ = "checkpoint_aliases"

    name: Mapped[str] = mapped_column(ordered_text(200), primary_key=True)
    project: Mapped[str] = mapped_column(String(64), primary_key=True, default=DEFAULT, server_default=DEFAULT)
    checkpoint_id: Mapped[str] = mapped_column(String(40), ForeignKey("checkpoints.id", ondelete="CASCADE"), index=True)
    version: Mapped[int] = mapped_column(Integer)
    """Of the newest move."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    moved_at: Mapped[float] = mapped_column(Timestamp)

    key = column_property(project + "/" + name)
    """Distinguishes equal names where the rows of all projects are listed."""
    moved_by: Mapped[str | None] = column_property(
        select(AliasMove.moved_by)
        .where(AliasMove.alias == name, AliasMove.project == project, AliasMove.version == version)
        .correlate_except(AliasMove)
        .scalar_subquery()
    )
    run_id: Mapped[str] = column_property(_of_checkpoint(Checkpoint.run_id, checkpoint_id))
    step: Mapped[int] = column_property(_of_checkpoint(Checkpoint.step, checkpoint_id))

    __table_args__ = (PrimaryKeyConstraint("name", "project"),)
