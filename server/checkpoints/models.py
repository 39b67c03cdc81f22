"""Checkpoints: published sets of files, uploaded files, which runs begin with which, aliases, and requests."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    ScalarSelect,
    String,
    Text,
    select,
)
from sqlalchemy.orm import InstrumentedAttribute, Mapped, column_property, mapped_column

from server.kit.db.base import Base, Json, Timestamp, ordered_text, partial_index
from server.kit.db.projects import DEFAULT, OfRun, Owned
from server.kit.db.texts import JsonObject

UNPURGED_SQL = "deleted_at IS NOT NULL AND purged_at IS NULL"
"""Given up, with files that are still to be removed."""


class Checkpoint(OfRun, Base):
    """A complete state of a run: all behaviors, everything that is needed to go on, and the exported models."""

    __tablename__ = "checkpoints"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    attempt: Mapped[int] = mapped_column(Integer)
    step: Mapped[int] = mapped_column(BigInteger)
    """Agent steps of all behaviors together."""
    steps: Mapped[dict[str, int]] = mapped_column(Json)
    """Agent steps per behavior."""
    reason: Mapped[str] = mapped_column(String(16))
    """`interval`, `final` or `requested`."""
    path: Mapped[str] = mapped_column(Text)
    """Prefix in the artifact store; carries the attempt number."""
    files: Mapped[list[JsonObject]] = mapped_column(Json)
    """`[{"name": "CartPole.onnx", "size": 1234, "sha256": "..."}]`, names relative to `path`."""
    models: Mapped[JsonObject | None] = mapped_column(Json, default=dict)
    """Descriptions of the ONNX models (`ludus.schemas.OnnxModel`) by the names of their files; None: not recorded. They
    are not in `files`, of which the previous release knows every key."""
    size: Mapped[int] = mapped_column(BigInteger)
    metrics: Mapped[dict[str, float | None]] = mapped_column(Json, default=dict)
    """Per behavior: mean episode return, or null."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    deleted_at: Mapped[float | None] = mapped_column(Timestamp)
    """Set when it is given up: it must not be used any more, and its files will be removed."""
    purged_at: Mapped[float | None] = mapped_column(Timestamp)
    """Set when its files are removed."""
    scores: Mapped[dict[str, dict[str, float]] | None] = mapped_column(Json, default=dict)
    """`{"CartPole": {"Environment/Cumulative Reward": 475.0}}`: metrics at its moment, and what evaluations said."""
    score: Mapped[float | None] = mapped_column(Double)
    """The value that `best` compares, higher is better; None: no score yet (`server.checkpoints.refs`)."""
    scored_by: Mapped[JsonObject | None] = mapped_column(Json)
    """The measurement behind it (`ludus.schemas.ScoredBy`); None: no score, or one of an earlier release."""
    pinned_at: Mapped[float | None] = mapped_column(Timestamp)
    """Set while it is pinned: the retention rules do not apply to it."""
    damaged_at: Mapped[float | None] = mapped_column(Timestamp)
    """Set when a file was found to be missing or altered."""
    damage: Mapped[str | None] = mapped_column(Text)
    """The damaged file, and its defect."""

    __table_args__ = (
        Index(None, "run_id", "created_at"),
        partial_index("ix_checkpoints_unpurged", "deleted_at", where=UNPURGED_SQL),
    )


class UploadedCheckpoint(Owned, Base):
    """A checkpoint that another program wrote. Neither the file nor what is known of it ever changes."""

    __tablename__ = "uploaded_checkpoints"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(ordered_text(200))
    """For people; not unique."""
    behavior: Mapped[str | None] = mapped_column(ordered_text(200))
    """The behavior that it was trained for, if the user said so: the file does not."""
    format: Mapped[str] = mapped_column(String(16))
    """`mlagents` (`checkpoint.pt`)."""
    modules: Mapped[list[str]] = mapped_column(Json)
    """The names of the file's modules, as in `["Policy", "Optimizer:critic"]`."""
    path: Mapped[str] = mapped_column(Text)
    """Its folder in the artifact store."""
    file: Mapped[str] = mapped_column(String(200))
    """The file in the folder."""
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = (Index(None, "created_at"),)


class RunInitialCheckpoint(Base):
    """A run was created with this checkpoint, another run's or an uploaded one, in its configuration."""

    __tablename__ = "run_initial_checkpoints"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    checkpoint_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Of `checkpoints` or of `uploaded_checkpoints`."""

    __table_args__ = (Index(None, "checkpoint_id"),)


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


PENDING_SQL = "answered_at IS NULL"


class CheckpointRequest(Base):
    """A user wants a checkpoint of a running run. Answered once, by an id or by why there is none."""

    __tablename__ = "checkpoint_requests"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 1, 2, 3, ... per run."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    answered_at: Mapped[float | None] = mapped_column(Timestamp)
    checkpoint_id: Mapped[str | None] = mapped_column(String(40))
    problem: Mapped[str | None] = mapped_column(Text)
    """A sentence for people, where there is no checkpoint."""

    __table_args__ = (partial_index("ix_checkpoint_requests_pending", "run_id", where=PENDING_SQL),)
