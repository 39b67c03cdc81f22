"""Checkpoints: one row per published set of files."""

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from server.db.base import Base, Json, Timestamp


class Checkpoint(Base):
    """A complete state of a run: all behaviors, everything that is needed to go on, and the exported models."""

    __tablename__ = "checkpoints"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    epoch: Mapped[int] = mapped_column(Integer)
    step: Mapped[int] = mapped_column(BigInteger)
    """Agent steps of all behaviors together."""
    steps: Mapped[dict[str, Any]] = mapped_column(Json)
    """Agent steps per behavior."""
    reason: Mapped[str] = mapped_column(String(16))
    """`interval`, `final` or `requested`."""
    path: Mapped[str] = mapped_column(Text)
    """Prefix in the artifact store; carries the epoch."""
    files: Mapped[list[Any]] = mapped_column(Json)
    """`[{"name": "CartPole.onnx", "size": 1234, "sha256": "..."}]`, names relative to `path`."""
    size: Mapped[int] = mapped_column(BigInteger)
    metrics: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    """Per behavior: mean episode return since the previous checkpoint, or null."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    deleted_at: Mapped[float | None] = mapped_column(Timestamp)
    """Set when retention has removed the files."""

    __table_args__ = (Index(None, "run_id", "created_at"),)
