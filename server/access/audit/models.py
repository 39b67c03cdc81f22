"""The audit log: one row for each request that changed something, or tried to."""

from sqlalchemy import Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Timestamp
from server.kit.db.projects import Owned


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
