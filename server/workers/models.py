"""Worker hosts and their slots."""

from typing import Any

from sqlalchemy import Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Json, Timestamp, ordered_text


class Worker(Base):
    """One Celery worker child, which is one slot."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    """`host/pid/start` of the slot's process."""
    host: Mapped[str] = mapped_column(ordered_text(200))
    pid: Mapped[int] = mapped_column(Integer)
    version: Mapped[str] = mapped_column(String(40))
    labels: Mapped[list[Any]] = mapped_column(Json, default=list)
    resources: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    """For instance `{"gpus": ["GPU-5d2f..."]}`."""
    started_at: Mapped[float] = mapped_column(Timestamp)
    heartbeat_at: Mapped[float] = mapped_column(Timestamp, index=True)
    last_claim_at: Mapped[float | None] = mapped_column(Timestamp)
    run_id: Mapped[str | None] = mapped_column(String(40))
    """The run that the slot executes."""
    stopped_at: Mapped[float | None] = mapped_column(Timestamp)
