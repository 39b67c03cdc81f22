"""Simulators, connected and past, and their errors."""

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, column_property, mapped_column

from server.kit.db.base import Base, Json, Timestamp, ordered_text
from server.kit.db.projects import OfRun
from server.kit.errors import Conflict, NotFound


class Simulator(OfRun, Base):
    """One session_id: a process connection that joined a run. The gateway inserts it, the supervisor keeps it."""

    __tablename__ = "simulators"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    session_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int] = mapped_column(Integer)
    """Its seed is the run's seed + number."""
    label: Mapped[str] = mapped_column(ordered_text(200), default="")
    client: Mapped[str] = mapped_column(String(100), default="")
    peer: Mapped[str] = mapped_column(String(200), default="")
    state: Mapped[str] = mapped_column(String(16))
    """`joined` (has a ticket), `connected`, `left`."""
    attempt: Mapped[int] = mapped_column(Integer)
    collector: Mapped[int | None] = mapped_column(Integer)
    relayed: Mapped[bool] = mapped_column(default=False)
    behaviors: Mapped[list[str]] = mapped_column(Json, default=list)
    agents: Mapped[int] = mapped_column(Integer, default=0)
    steps: Mapped[int] = mapped_column(BigInteger, default=0)
    """Agent steps that it has contributed in its current session."""
    joined_at: Mapped[float] = mapped_column(Timestamp)
    connected_at: Mapped[float | None] = mapped_column(Timestamp)
    left_at: Mapped[float | None] = mapped_column(Timestamp)
    leave_code: Mapped[str | None] = mapped_column(String(64))
    """Stable name of why it left, the code of the Close message where there was one."""
    leave_reason: Mapped[str | None] = mapped_column(Text)

    key = column_property(run_id + "/" + session_id)
    """Distinguishes equal session ids where the simulators of all runs are listed."""

    # The last four are for that list: its orders, and telling rare conditions from common ones.
    __table_args__ = (
        Index(None, "run_id", "state"),
        Index(None, "run_id", "number"),
        Index(None, "joined_at"),
        Index(None, "left_at"),
        Index(None, "state", "joined_at"),
        Index(None, "leave_code", "left_at"),
    )


class RunClosed(Conflict, code="run_ended"):
    """The run takes no simulators any more."""

    run_id: str
    state: str
    sentence = "Run {run_id} has ended ({state}) and takes no simulators any more. Create a new run."


class NoPlaces(Conflict, code="no_places"):
    """The run takes no edge collectors."""

    run_id: str
    sentence = (
        "Run {run_id} takes no edge collectors (simulators.collectors.edge is 0 in its configuration): connect its "
        "games without one (--collect there), or create the run with places."
    )


class PlacesUnavailable(Conflict, code="places_unavailable"):
    """The worker of the run can't take edge collectors."""

    run_id: str
    detail: str
    sentence = (
        "The worker of run {run_id} can't take edge collectors: {detail}. Connect the games without one (--collect "
        "there). If a port is missing, LUDUS_WORKER__PORT_RANGE needs one more than the worker has collectors."
    )


class SimulatorNotFound(NotFound, code="simulator_not_found"):
    """The run has had no such simulator."""

    run_id: str
    session_id: str
    sentence = "Run {run_id} has had no simulator {session_id!r}. List the run's simulators."
