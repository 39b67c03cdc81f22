"""Metrics: one latest-value row per key, history in packed chunks."""

from sqlalchemy import BigInteger, Double, ForeignKey, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from server.db.base import CLUSTERED, Base, Timestamp


class LatestMetric(Base):
    """The newest value of a key. Run lists read these rows and never the history."""

    __tablename__ = "latest_metrics"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    behavior: Mapped[str] = mapped_column(String(200), primary_key=True)
    """Empty for metrics of the run as a whole."""
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger)
    value: Mapped[float | None] = mapped_column(Double)
    """None where it was no finite number (SQLite stores no NaN); the history has the exact value."""
    at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = CLUSTERED


class MetricChunk(Base):
    """Consecutive points of a key within one attempt, little-endian: int64 steps, float64 times, float64 values."""

    __tablename__ = "metric_chunks"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    behavior: Mapped[str] = mapped_column(String(200), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    epoch: Mapped[int] = mapped_column(Integer, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 0, 1, 2, ... per (run, behavior, key, epoch). The last one grows until it is full."""
    count: Mapped[int] = mapped_column(Integer)
    first_step: Mapped[int] = mapped_column(BigInteger)
    last_step: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[bytes] = mapped_column(LargeBinary)
    times: Mapped[bytes] = mapped_column(LargeBinary)
    values: Mapped[bytes] = mapped_column(LargeBinary)
