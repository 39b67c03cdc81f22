"""Assessments: one row per run that evaluates policies, from its first result on."""

from typing import Any

from sqlalchemy import ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Json, Timestamp


class RunAssessment(Base):
    """Where an assessment stands. Written as a whole each time, so that nothing can count twice."""

    __tablename__ = "run_assessments"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer)
    """Attempt that wrote it."""
    verdict: Mapped[str | None] = mapped_column(String(16))
    """`pass`, `fail` or `undecided`; None while it goes on."""
    games: Mapped[int] = mapped_column(Integer)
    """Games, or episodes, that are counted."""
    result: Mapped[dict[str, Any]] = mapped_column(Json)
    """The JSON form of `ludus.schemas.MatchResult` or `EvaluationResult`."""
    state: Mapped[dict[str, Any]] = mapped_column(Json)
    """The trainer's counts, from which the next attempt continues."""
    updated_at: Mapped[float] = mapped_column(Timestamp)
