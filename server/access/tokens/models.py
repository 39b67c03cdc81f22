"""Tokens: scopes, project, and expiry."""

from typing import Any

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Json, Timestamp, ordered_text


class Token(Base):
    """One token. Of its secret the database knows the SHA-256 alone."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(ordered_text(200))
    """For people; not unique."""
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the secret, in hexadecimal."""
    scopes: Mapped[list[Any]] = mapped_column(Json)
    """Of `server.kit.principal.Scope`, as they were asked for."""
    project: Mapped[str] = mapped_column(String(64))
    """`*`: all projects."""
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    """The only run that it is for; None: any of the project."""
    ladder_id: Mapped[str | None] = mapped_column(ForeignKey("ladders.id", ondelete="CASCADE"), index=True)
    """The only ladder that it is for; None: any of the project."""
    created_by: Mapped[str] = mapped_column(String(200))
    """Name of the principal that made it."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    expires_at: Mapped[float | None] = mapped_column(Timestamp)
    """None: never."""
    last_used_at: Mapped[float | None] = mapped_column(Timestamp)
    """To the minute."""
    revoked_at: Mapped[float | None] = mapped_column(Timestamp)

    __table_args__ = (Index(None, "created_at", "id"),)
