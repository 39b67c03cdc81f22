"""Idempotency keys of mutating requests (IETF draft-ietf-httpapi-idempotency-key-header)."""

from typing import Any

from sqlalchemy import Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Json, Timestamp


class IdempotencyKey(Base):
    """The first answer to a request with this key; a repetition gets it again."""

    __tablename__ = "idempotency_keys"

    scope: Mapped[str] = mapped_column(String(200), primary_key=True)
    """Method and path."""
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the request's content."""
    status: Mapped[int | None] = mapped_column(Integer)
    """HTTP status of the answer. None while the first request is still in flight."""
    response: Mapped[dict[str, Any] | None] = mapped_column(Json)
    created_at: Mapped[float] = mapped_column(Timestamp, index=True)
