"""Metrics: one latest-value row per key, history in packed chunks."""

from sqlalchemy import BigInteger, Double, ForeignKey, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import CLUSTERED, Base, Timestamp, partial_index

STALE_SQL = "extremes_step IS NULL OR extremes_step <> step"
"""Metrics whose extremes are not known up to the newest step. Queries use these words, so that the index applies."""


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
    highest: Mapped[float | None] = mapped_column(Double)
    """Of all points that count; None where none is a finite number, or while `extremes_step` is None."""
    lowest: Mapped[float | None] = mapped_column(Double)
    extremes_step: Mapped[int | None] = mapped_column(BigInteger)
    """Step up to which the two are known. Another one than `step` where a release wrote that does not know them."""

    __table_args__ = (
        Index(None, "key", "run_id"),
        partial_index("ix_latest_metrics_stale", "run_id", where=STALE_SQL),
        CLUSTERED,
    )


class MetricChunk(Base):
    """Consecutive points of a key within one attempt, little-endian: int64 steps, float64 times, float64 values."""

    __tablename__ = "metric_chunks"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    behavior: Mapped[str] = mapped_column(String(200), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 0, 1, 2, ... per (run, behavior, key, attempt number). The last one grows until it is full."""
    count: Mapped[int] = mapped_column(Integer)
    first_step: Mapped[int] = mapped_column(BigInteger)
    last_step: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[bytes] = mapped_column(LargeBinary)
    times: Mapped[bytes] = mapped_column(LargeBinary)
    values: Mapped[bytes] = mapped_column(LargeBinary)
