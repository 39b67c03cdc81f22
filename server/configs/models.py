"""Named configurations with immutable versions."""

from typing import Any

from sqlalchemy import Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from server.db.base import Base, Json, Timestamp, ordered_text


class ConfigVersion(Base):
    """One immutable version of a named configuration. Versions count 1, 2, 3, ... per name."""

    __tablename__ = "config_versions"

    name: Mapped[str] = mapped_column(ordered_text(200), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    source: Mapped[str] = mapped_column(Text)
    """The document as it was sent."""
    document: Mapped[dict[str, Any]] = mapped_column(Json)
    """The source, parsed."""
    resolved: Mapped[dict[str, Any]] = mapped_column(Json)
    """Every default filled in."""
    description: Mapped[str] = mapped_column(Text, default="")
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the resolved form as canonical JSON: storing an equal document again returns the same version."""
    created_at: Mapped[float] = mapped_column(Timestamp)
