"""Sessions: what they stand for, and how long."""

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Timestamp


class BrowserSession(Base):
    """One session of a browser. It has the rights of its token, as long as the token is valid."""

    __tablename__ = "browser_sessions"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the cookie's secret, in hexadecimal."""
    token_id: Mapped[str | None] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    """None: the token of the server's settings."""
    configured_digest: Mapped[str | None] = mapped_column(String(64))
    """HMAC-SHA-256 of the token of the server's settings, with the cookie's secret as key: the database alone is not
    enough to guess the token. None: a token of the database.
    """
    project: Mapped[str] = mapped_column(String(64))
    """In which its requests act unless they name another; `*`: all projects."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    expires_at: Mapped[float] = mapped_column(Timestamp)
    last_used_at: Mapped[float | None] = mapped_column(Timestamp)
    """To the minute."""
    ended_at: Mapped[float | None] = mapped_column(Timestamp)
    """When the user signed out; None: not yet."""
