"""Demonstrations: one row per stored file, and which runs use which."""

from typing import Any

from sqlalchemy import BigInteger, Double, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Json, Timestamp, ordered_text
from server.kit.db.projects import Owned


class Demonstration(Owned, Base):
    """A recording of one behavior. Neither the file nor what is known of it ever changes."""

    __tablename__ = "demonstrations"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(ordered_text(200))
    """For people; not unique."""
    behavior: Mapped[str] = mapped_column(ordered_text(200))
    """The behavior that was recorded, as it announced itself."""
    spec: Mapped[dict[str, Any]] = mapped_column(Json)
    """Its observations and actions; see `server.demonstrations.refs`."""
    format: Mapped[str] = mapped_column(String(16))
    """`mlagents` (`.demo`) or `ludus` (`.npz`)."""
    path: Mapped[str] = mapped_column(Text)
    """The file in the artifact store."""
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    transitions: Mapped[int] = mapped_column(BigInteger)
    episodes: Mapped[int] = mapped_column(BigInteger)
    """Complete ones."""
    mean_return: Mapped[float | None] = mapped_column(Double)
    """Of the complete episodes; None without any."""
    summary: Mapped[dict[str, Any]] = mapped_column(Json)
    """`ludus.schemas.DemonstrationStatistics` as JSON."""
    origin: Mapped[dict[str, object]] = mapped_column(Json)
    """Empty if uploaded; else `{"merged": [ids]}` or `{"subsampled": id, "count": .., "seed": ..}`."""
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = (Index(None, "created_at"),)


class RunDemonstration(Base):
    """A run was created with this demonstration in its configuration."""

    __tablename__ = "run_demonstrations"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    demonstration_id: Mapped[str] = mapped_column(ForeignKey("demonstrations.id", ondelete="CASCADE"), primary_key=True)

    __table_args__ = (Index(None, "demonstration_id"),)
