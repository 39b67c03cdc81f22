"""Recordings in the database: one row per file, and the writes of an attempt."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import BigInteger, Double, ForeignKey, Index, Integer, String, Text, delete, func, select
from sqlalchemy.orm import Mapped, mapped_column

from ludus.config.recording import RecordConfig
from server.kit.artifacts.repository import GivenUpFileRepository
from server.kit.db.base import Base, Json, Timestamp
from server.kit.db.clock import now
from server.kit.db.database import Session
from server.kit.db.projects import OfRun
from server.kit.db.repository import Repository
from server.kit.db.texts import storable
from server.kit.errors import Invalid, NotFound
from server.runs.attempts import AttemptFence
from server.runs.events.repository import Note


class RecordingNotFound(NotFound, code="recording_not_found"):
    """The run has no recording of this id."""

    recording_id: str
    sentence = "The run has no recording {recording_id!r}. List its recordings to see what there is."


class RecordingInvalid(Invalid, code="recording_invalid"):
    """The file of a recording is damaged."""

    recording_id: str
    problem: str
    sentence = "The recording {recording_id} cannot be read: {problem}"


class Recording(OfRun, Base):
    """A recording of a session. Its file never changes."""

    __tablename__ = "recordings"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    attempt: Mapped[int] = mapped_column(Integer)
    session_id: Mapped[str] = mapped_column(String(64))
    simulator: Mapped[int] = mapped_column(BigInteger)
    """Its number."""
    carrier: Mapped[str] = mapped_column(String(16))
    behaviors: Mapped[list[str]] = mapped_column(Json)
    cause: Mapped[str] = mapped_column(String(16))
    code: Mapped[str] = mapped_column(String(64))
    reason: Mapped[str] = mapped_column(Text)
    frames: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[float] = mapped_column(Double)
    path: Mapped[str] = mapped_column(Text)
    """The file in the artifact store."""
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    started_at: Mapped[float] = mapped_column(Timestamp)
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = (Index(None, "run_id"), Index(None, "created_at"))


@dataclass(frozen=True)
class NewRecording:
    """A file in the artifact store, as its row has it."""

    id: str
    session_id: str
    simulator: int
    carrier: str
    behaviors: Sequence[str]
    cause: str
    code: str
    reason: str
    frames: int
    seconds: float
    path: str
    size: int
    sha256: str
    started_at: float


class RecordingRepository(Repository):
    """Recordings, seen through one session."""

    def get(self, run_id: str, recording_id: str) -> Recording:
        """Return a recording of a run. Raises RecordingNotFound."""
        row = self._session.get(Recording, recording_id)
        if row is None or row.run_id != run_id:
            raise RecordingNotFound(recording_id)
        return row

    def of_run(self, run_id: str) -> Sequence[Recording]:
        """Return the recordings of a run, the newest first."""
        query = select(Recording).where(Recording.run_id == run_id)
        return self._session.scalars(query.order_by(Recording.id.desc())).all()

    def delete(self, row: Recording) -> None:
        """Delete a row, and give up its file."""
        GivenUpFileRepository(self._session).give_up(row.path)
        self._session.execute(delete(Recording).where(Recording.id == row.id))

    def make_room(self, run_id: str, size: int, total: int) -> int:
        """Delete the oldest recordings of a run until `size` bytes more are at most `total`; return how many."""
        query = select(func.coalesce(func.sum(Recording.size), 0)).where(Recording.run_id == run_id)
        used, deleted = int(self._session.scalar(query) or 0), 0
        for row in reversed(self.of_run(run_id)) if used + size > total else ():
            if used + size <= total:
                break
            self.delete(row)
            used, deleted = used - row.size, deleted + 1
        return deleted

    def forget(self, days: float, limit: int) -> int:
        """Delete at most `limit` recordings that are older; return how many."""
        query = select(Recording).where(Recording.created_at < now() - days * 86400)
        rows = self._session.scalars(query.order_by(Recording.created_at).limit(limit)).all()
        for row in rows:
            self.delete(row)
        return len(rows)


class RecordingWriter:
    """An attempt's recordings."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def add(self, new: NewRecording) -> None:
        """Enter a stored recording; the oldest of the run make room for it. Raises LeaseLost."""
        with self._fence.write() as (session, run):
            session.refresh(run, ["config"])
            record = RecordConfig.model_validate(run.config.get("simulators", {}).get("record", {}))
            deleted = RecordingRepository(session).make_room(run.id, new.size, record.total_bytes)
            _insert(session, run.id, self._fence.number, new)
            if new.cause != "error" and not deleted:
                return
            sentence = f"Session {new.session_id} of simulator {new.simulator} is recorded: {new.frames} messages."
            if new.cause == "error":
                sentence = (
                    f"The last {new.seconds:.0f} s of simulator {new.simulator} are kept, which ended with {new.code}: "
                    f"`ludus recording download {run.id} {new.id}`, then `ludus replay` the file."
                )
            if deleted:
                sentence += f" {deleted} older were deleted for it (simulators.record.total_bytes)."
            data = {"recording": new.id, "session_id": new.session_id, "code": new.code, "deleted": deleted}
            self._fence.record(session, Note("session_recorded", sentence, data=data))


def _insert(session: Session, run_id: str, attempt: int, new: NewRecording) -> None:
    texts = {"session_id": 64, "carrier": 16, "cause": 16, "code": 64, "reason": 4000}
    values = asdict(new) | {name: storable(getattr(new, name), limit) for name, limit in texts.items()}
    values["behaviors"] = [storable(name, 200) for name in new.behaviors[:100]]
    session.add(Recording(run_id=run_id, attempt=attempt, created_at=now(), **values))
    session.flush()
