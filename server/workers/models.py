"""Worker hosts and their slots, and the cordons that keep runs away from them."""

from sqlalchemy import ColumnElement, Integer, String, case, exists, func, select
from sqlalchemy.orm import Mapped, column_property, mapped_column

from server.kit.db.base import Base, Json, Timestamp, ordered_text, partial_index
from server.kit.db.clock import later, now
from server.kit.db.texts import JsonObject
from server.runs.models import Lease
from server.runs.scheduling.demand import Offer

SILENT_SECONDS = 15
"""A slot that gives no sign of life for so long is lost, or does not get on: its lease has run out."""


class Cordon(Base):
    """A host, or one slot, that takes no run until the cordon is lifted."""

    __tablename__ = "cordons"

    name: Mapped[str] = mapped_column(ordered_text(200), primary_key=True)
    """`Worker.host` (all its slots, also those that start later) or `Worker.id` (one slot)."""
    draining: Mapped[bool]
    """Whether runs that the slots held were asked to hand themselves back."""
    created_at: Mapped[float] = mapped_column(Timestamp)


def _heard(beat: Mapped[float], run_id: Mapped[str | None], worker_id: Mapped[str]) -> ColumnElement[float]:
    """Build the time of a slot's newest beat, or of the newest renewal of the lease that it holds."""
    renewed = select(Lease.renewed_at).where(Lease.run_id == run_id, Lease.worker_id == worker_id)
    return later(beat, func.coalesce(renewed.correlate_except(Lease).scalar_subquery(), 0.0))


class Worker(Base):
    """One Celery worker child, which is one slot."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    """`host/pid/start` of the slot's process."""
    host: Mapped[str] = mapped_column(ordered_text(200))
    pid: Mapped[int] = mapped_column(Integer)
    version: Mapped[str] = mapped_column(String(40))
    labels: Mapped[list[str]] = mapped_column(Json, default=list)
    resources: Mapped[JsonObject] = mapped_column(Json, default=dict)
    """For instance `{"gpus": ["GPU-5d2f..."]}`."""
    kind: Mapped[str | None] = mapped_column(ordered_text(16))
    """Kind of its offer (`Offer.kind`), for which it receives messages; null where a release before `0028` wrote it."""
    started_at: Mapped[float] = mapped_column(Timestamp)
    stored_heartbeat_at: Mapped[float] = mapped_column("heartbeat_at", Timestamp)
    """The last beat while the slot was idle, or of its last attempt. See `heartbeat_at`."""
    last_claim_at: Mapped[float | None] = mapped_column(Timestamp)
    run_id: Mapped[str | None] = mapped_column(String(40))
    """The run that the slot executes."""
    stopped_at: Mapped[float | None] = mapped_column(Timestamp)
    heartbeat_at: Mapped[float] = column_property(_heard(stored_heartbeat_at, run_id, id))  # noqa: A003  # the column
    """The last sign of life: a slot that executes a run renews its lease, and writes nothing here."""
    silent_since: Mapped[float | None] = column_property(
        case(
            (
                stopped_at.is_(None) & (_heard(stored_heartbeat_at, run_id, id) < now() - SILENT_SECONDS),  # noqa: A003
                _heard(stored_heartbeat_at, run_id, id),  # noqa: A003
            )
        )
    )
    """Its last sign of life, where that is too long ago for a slot that lives and has not stopped."""
    cordoned: Mapped[bool] = column_property(exists().where(Cordon.name.in_([id, host])))  # noqa: A003  # the column
    """Whether the slot takes no run, because it or its host is cordoned."""
    draining: Mapped[bool] = column_property(
        exists().where(Cordon.name.in_([id, host]), Cordon.draining)  # noqa: A003  # the column
    )
    """Whether it is to hand its run back, too."""

    __table_args__ = (partial_index("ix_workers_kind", "kind", "run_id", "heartbeat_at", where="stopped_at IS NULL"),)

    @property
    def offer(self) -> Offer:
        """Return the resources that it offers to runs."""
        return Offer.of(self.labels, self.resources, cordoned=self.cordoned)
