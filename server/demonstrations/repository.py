"""Demonstrations in the database: one row per stored file, and which runs use which."""

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import BigInteger, Double, ForeignKey, Index, String, Text, delete, select
from sqlalchemy.orm import Mapped, mapped_column

from server.demonstrations.refs import DemonstrationNotFound, DemonstrationRef
from server.kit.db.base import Base, Json, Timestamp, ordered_text
from server.kit.db.projects import Owned
from server.kit.db.repository import Repository
from server.kit.db.texts import JsonObject
from server.kit.states import TERMINAL
from server.runs.models import Run


class Demonstration(Owned, Base):
    """A recording of one behavior. Neither the file nor what is known of it ever changes."""

    __tablename__ = "demonstrations"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(ordered_text(200))
    """For people; not unique."""
    behavior: Mapped[str] = mapped_column(ordered_text(200))
    """The behavior that was recorded, as it announced itself."""
    spec: Mapped[JsonObject] = mapped_column(Json)
    """Its observations and actions; see `server.demonstrations.refs`."""
    format: Mapped[str] = mapped_column(String(16))
    """`mlagents` (`.demo`) or `ludus` (`.npz`)."""
    path: Mapped[str] = mapped_column(Text)
    """The file in the artifact store."""
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    transitions: Mapped[int] = mapped_column(BigInteger)
    episodes: Mapped[int] = mapped_column(BigInteger)
    """Complete ones."""
    mean_return: Mapped[float | None] = mapped_column(Double)
    """Of the complete episodes; None without any."""
    summary: Mapped[JsonObject] = mapped_column(Json)
    """`ludus.schemas.DemonstrationStatistics` as JSON."""
    origin: Mapped[dict[str, object]] = mapped_column(Json)
    """Empty if uploaded; else `{"merged": [ids]}` or `{"subsampled": id, "count": .., "seed": ..}`."""
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = (Index(None, "created_at"),)


class RunDemonstration(Base):
    """A run was created with this demonstration in its configuration."""

    __tablename__ = "run_demonstrations"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    demonstration_id: Mapped[str] = mapped_column(ForeignKey("demonstrations.id", ondelete="CASCADE"), primary_key=True)

    __table_args__ = (Index(None, "demonstration_id"),)


class DemonstrationRepository(Repository):
    """Demonstrations, seen through one session."""

    def get(self, demonstration_id: str) -> Demonstration:
        """Return one demonstration. Raises DemonstrationNotFound."""
        demonstration = self._session.get(Demonstration, demonstration_id)
        if demonstration is None:
            raise DemonstrationNotFound(demonstration_id)
        return demonstration

    def existing(self, ids: Collection[str], *, lock: bool) -> dict[str, Demonstration]:
        """Return the existing ones of these demonstrations, by id; with `lock` they stay until the commit."""
        query = select(Demonstration).where(Demonstration.id.in_(ids)).order_by(Demonstration.id)
        rows = self._session.scalars(query.with_for_update(read=True) if lock else query)
        return {row.id: row for row in rows}

    def delete(self, demonstration: Demonstration) -> None:
        """Remove a row, with the notes of its use."""
        uses = delete(RunDemonstration).where(RunDemonstration.demonstration_id == demonstration.id)
        self._session.execute(uses)
        self._session.delete(demonstration)
        self._session.flush()

    def use(self, run_id: str, ids: Iterable[str]) -> None:
        """Record that a run uses demonstrations."""
        self._session.add_all(RunDemonstration(run_id=run_id, demonstration_id=id_) for id_ in sorted(set(ids)))
        self._session.flush()

    def of_run(self, run_id: str) -> Sequence[Demonstration]:
        """Return the demonstrations that a run uses."""
        query = select(Demonstration).join(RunDemonstration).where(RunDemonstration.run_id == run_id)
        return self._session.scalars(query.order_by(Demonstration.id)).all()

    def live_user(self, demonstration_id: str) -> str | None:
        """Return the id of a run that uses a demonstration and has not ended, None if there is none."""
        query = (
            select(Run.id)
            .join(RunDemonstration, RunDemonstration.run_id == Run.id)
            .where(RunDemonstration.demonstration_id == demonstration_id, Run.state.not_in(TERMINAL))
        )
        return self._session.scalar(query.limit(1))


def ref(demonstration: Demonstration) -> DemonstrationRef:
    """Return a demonstration as a value that outlives the session."""
    return DemonstrationRef(demonstration.id, demonstration.name, demonstration.path, demonstration.sha256)
