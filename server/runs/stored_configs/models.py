"""Named configurations with immutable versions."""

from sqlalchemy import Integer, PrimaryKeyConstraint, String, Text
from sqlalchemy.orm import Mapped, column_property, mapped_column

from ludus.json_values import JsonObject
from server.kit.db.base import Base, Json, Timestamp, ordered_text
from server.kit.db.projects import DEFAULT, Owned


class ConfigVersion(Owned, Base):
    """One immutable version of a named configuration. Versions count 1, 2, 3, ... per name of a project."""

    __tablename__ = "config_versions"

    name: Mapped[str] = mapped_column(ordered_text(200), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    project: Mapped[str] = mapped_column(String(64), primary_key=True, default=DEFAULT, server_default=DEFAULT)
    source: Mapped[str] = mapped_column(Text)
    """The document as it was sent."""
    document: Mapped[JsonObject] = mapped_column(Json)
    """The source, parsed."""
    resolved: Mapped[JsonObject] = mapped_column(Json)
    """Every default filled in."""
    description: Mapped[str] = mapped_column(Text, default="")
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the resolved form as canonical JSON: storing an equal document again returns the same version."""
    created_at: Mapped[float] = mapped_column(Timestamp)

    key = column_property(project + "/" + name)
    """Distinguishes equal names where the rows of all projects are listed."""

    __table_args__ = (PrimaryKeyConstraint("name", "version", "project"),)
