"""Metrics: the tail that attempts append to, the chunks and newest values into which the controller packs it, and the
Parquet files of runs that ended.
"""

from dataclasses import asdict

from sqlalchemy import BigInteger, Double, ForeignKey, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import CLUSTERED, Base, Timestamp, partial_index
from server.metrics.points import CHUNK_POINTS, NewestValue, Points

OPEN_SQL = f"count < {CHUNK_POINTS}"
"""Chunks that are not full. Queries use these words, so that the index applies."""


class MetricTail(Base):
    """The points of one append, all keys in one row, until the controller packs them into chunks."""

    __tablename__ = "metric_tail"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Order of the appends of an attempt that are still here."""
    at: Mapped[float] = mapped_column(Timestamp)
    """Time of the append on the database's clock."""
    points: Mapped[bytes] = mapped_column(LargeBinary)
    """`server.metrics.repository.pack`."""


class LatestMetric(Base):
    """The newest value of a key, as of the last packing of the run's tail. Lists of runs are sorted by them."""

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
    """Of all points that count; None where none is a finite number."""
    lowest: Mapped[float | None] = mapped_column(Double)
    extremes_step: Mapped[int | None] = mapped_column(BigInteger)
    """Always `step`. The release before `0034` reads it; a later migration drops it."""

    @staticmethod
    def columns(newest: NewestValue) -> dict[str, object]:
        """Return the columns of a newest value."""
        return {**asdict(newest), "extremes_step": newest.step}

    __table_args__ = (
        Index(None, "key", "run_id"),
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
    """Ascending per (run, behavior, key, attempt number). The last few are small, until they make a full one."""
    count: Mapped[int] = mapped_column(Integer)
    first_step: Mapped[int] = mapped_column(BigInteger)
    last_step: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[bytes] = mapped_column(LargeBinary)
    times: Mapped[bytes] = mapped_column(LargeBinary)
    values: Mapped[bytes] = mapped_column(LargeBinary)
    highest: Mapped[float | None] = mapped_column(Double)
    """None where no value is a finite number."""
    lowest: Mapped[float | None] = mapped_column(Double)

    @staticmethod
    def columns(points: Points) -> dict[str, object]:
        """Return the columns that depend on a chunk's points, of which there is at least one."""
        steps, times, values = points.pack()
        highest, lowest = points.extremes()
        return {
            "count": len(points),
            "first_step": int(points.steps[0]),
            "last_step": int(points.steps[-1]),
            "steps": steps,
            "times": times,
            "values": values,
            "highest": highest,
            "lowest": lowest,
        }

    __table_args__ = (
        Index(None, "run_id", "last_step"),
        partial_index("ix_metric_chunks_open", "run_id", "attempt", where=OPEN_SQL),
    )


class MetricArchive(Base):
    """The Parquet file that holds the history of a run that has ended. The run has no chunks then."""

    __tablename__ = "metric_archives"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    path: Mapped[str] = mapped_column(String(200))
    """In the artifact store."""
    size: Mapped[int] = mapped_column(BigInteger)
    """Bytes."""
    sha256: Mapped[str] = mapped_column(String(64))
    points: Mapped[int] = mapped_column(BigInteger)
    thinned_to: Mapped[int | None] = mapped_column(Integer)
    """Maximum number of points of each metric to which the file was thinned; None: it has every point."""
    archived_at: Mapped[float] = mapped_column(Timestamp)
