"""Changes of the configurations of runs, and the last change that each trainer has applied."""

from typing import Any

from sqlalchemy import ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import CLUSTERED, Base, Json, Timestamp


class Amendment(Base):
    """One change of a run's configuration, of one or more keys. Rows stay: they are the history of `runs.config`."""

    __tablename__ = "amendments"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 1, 2, 3, ... per run."""
    changes: Mapped[list[Any]] = mapped_column(Json)
    """`[{"path": "behaviors.Walker.max_steps", "old": 500000, "new": 800000}]`."""
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = CLUSTERED


class AmendedRun(Base):
    """A run whose configuration was changed: `runs.config` is the present one."""

    __tablename__ = "amended_runs"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    original: Mapped[dict[str, Any]] = mapped_column(Json)
    """The configuration that the run was created with."""
    applied: Mapped[int] = mapped_column(Integer)
    """Number of the newest amendment that a trainer has carried out; those behind it are pending."""
    updated_at: Mapped[float] = mapped_column(Timestamp)
