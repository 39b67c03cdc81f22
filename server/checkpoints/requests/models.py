"""Requests for a checkpoint now."""

from sqlalchemy import ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Timestamp, partial_index

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
