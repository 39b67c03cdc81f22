"""Tokens, sessions of browsers, and the audit log: one row for each request that changed something, or tried to."""

from sqlalchemy import ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Json, Timestamp, ordered_text
from server.kit.db.projects import Owned


class Token(Base):
    """One token. Of its secret the database knows the SHA-256 alone."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(ordered_text(200))
    """For people; not unique."""
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the secret, in hexadecimal."""
    scopes: Mapped[list[str]] = mapped_column(Json)
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


class AuditEntry(Owned, Base):
    """One request. Rows are only ever added; the controller forgets old ones."""

    __tablename__ = "audit_entries"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    at: Mapped[float] = mapped_column(Timestamp)
    actor: Mapped[str] = mapped_column(String(200))
    """Name of the token, `configured token`, or `anonymous loopback`."""
    token_id: Mapped[str | None] = mapped_column(String(40))
    method: Mapped[str] = mapped_column(String(16))
    route: Mapped[str] = mapped_column(String(200))
    """The path as the API describes it, as in `/v1/runs/{run}:cancel`."""
    target: Mapped[str] = mapped_column(Text)
    """The path that was asked for."""
    request_id: Mapped[str] = mapped_column(String(64))
    status: Mapped[int] = mapped_column(Integer)
    """HTTP status of the answer."""
    client: Mapped[str] = mapped_column(String(64))
    """Address that the request came from."""

    __table_args__ = (Index(None, "at", "id"), Index(None, "project", "at", "id"))
