"""The present lessons of a run's environment parameters, and the changes that users request."""

from typing import Any

from sqlalchemy import ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import CLUSTERED, Base, Json, Timestamp


class RunParameters(Base):
    """The newest report of a run's trainer about its environment parameters."""

    __tablename__ = "run_parameters"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    parameters: Mapped[list[Any]] = mapped_column(Json)
    """`ludus.config.curriculum.ParameterStatus.to_plain` of each."""
    edit: Mapped[int] = mapped_column(Integer)
    """Number of the newest edit that it has carried out; those behind it are pending."""
    updated_at: Mapped[float] = mapped_column(Timestamp)


class ParameterEdit(Base):
    """A request for another lesson or value. Rows stay: a trainer that resumes from before an edit does it again."""

    __tablename__ = "parameter_edits"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 1, 2, 3, ... per run."""
    parameter: Mapped[str] = mapped_column(String(200))
    change: Mapped[dict[str, Any]] = mapped_column(Json)
    """`lesson`: its number from 1, `value`: as configurations write it; either or both."""
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = CLUSTERED
