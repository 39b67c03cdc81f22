"""Users' changes of runs that have not ended: hyperparameters of behaviors, and environment parameters.

A change is a numbered row first, and the run's configuration is the changed one at once. A live run's supervisor finds
the row with its next heartbeat and hands it to the trainer, which goes on with it from the next update and says so by
the event `hyperparameters_changed`. A trainer that begins later begins with the changed configuration; its checkpoint
has the number of the newest change that it includes, so that each change takes effect in its order and exactly once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator
from sqlalchemy import ForeignKey, Integer, func, select, update
from sqlalchemy.orm import Mapped, mapped_column

from ludus.config.environment_parameters import ParameterName
from ludus.config.problems import show
from ludus.config.run import RunConfig
from ludus.validation import OneOf
from server.config.amendment import amend
from server.kit.db.base import CLUSTERED, Base, Json, Timestamp
from server.kit.db.clock import now
from server.kit.db.database import Session
from server.kit.db.repository import Repository
from server.kit.db.texts import JsonObject
from server.kit.http.fields import RunName, Tag, Write
from server.runs.attempts import AttemptFence
from server.runs.environment_parameters import EnvironmentParameterChange, ParameterService
from server.runs.events.repository import Note, ask
from server.runs.models import Run
from server.runs.refs import AmendmentRef
from server.runs.repository import RunRepository


class Amendment(Base):
    """One change of a run's configuration, of one or more keys. Rows stay: they are the history of `runs.config`."""

    __tablename__ = "amendments"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 1, 2, 3, ... per run."""
    changes: Mapped[list[JsonObject]] = mapped_column(Json)
    """`[{"path": "behaviors.Walker.max_steps", "old": 500000, "new": 800000}]`."""
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = CLUSTERED


class AmendedRun(Base):
    """A run whose configuration was changed: `runs.config` is the present one."""

    __tablename__ = "amended_runs"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    original: Mapped[JsonObject] = mapped_column(Json)
    """The configuration that the run was created with."""
    applied: Mapped[int] = mapped_column(Integer)
    """Number of the newest amendment that a trainer has carried out; those behind it are pending."""
    updated_at: Mapped[float] = mapped_column(Timestamp)


class AmendmentRepository(Repository):
    """Amendments, and the runs that have some."""

    def of_run(self, run_id: str) -> AmendedRun | None:
        """Return how a changed run was configured at first, and how far its trainer is; None if nothing was changed."""
        return self._session.get(AmendedRun, run_id, populate_existing=True)

    def original(self, run: Run) -> JsonObject:
        """Return the resolved configuration that a run was created with."""
        amended = self.of_run(run.id)
        return run.config if amended is None else amended.original

    def list(self, run_id: str, after: int = 0) -> Sequence[Amendment]:
        """Return a run's amendments with a number above `after`, in their order."""
        query = select(Amendment).where(Amendment.run_id == run_id, Amendment.seq > after)
        return self._session.scalars(query.order_by(Amendment.seq)).all()

    def refs(self, run_id: str, after: int = 0) -> tuple[AmendmentRef, ...]:
        """Return the same as values."""
        return tuple(AmendmentRef(amendment.seq, tuple(amendment.changes)) for amendment in self.list(run_id, after))

    def add(self, run: Run, changes: Iterable[Mapping[str, object]], config: RunConfig) -> Amendment:
        """Append an amendment to a locked run, and make `config` its present configuration."""
        newest = select(func.max(Amendment.seq)).where(Amendment.run_id == run.id)
        amendment = Amendment(
            run_id=run.id,
            seq=(self._session.scalar(newest) or 0) + 1,
            changes=[dict(change) for change in changes],
            created_at=now(),
        )
        if self.of_run(run.id) is None:
            self._session.add(AmendedRun(run_id=run.id, original=dict(run.config), applied=0, updated_at=now()))
        self.save(amendment)
        present = {"config": config.model_dump(mode="json"), "max_steps": config.max_steps}
        self._session.execute(update(Run).where(Run.id == run.id).values(**present))
        self._session.refresh(run, ["config"])
        return amendment

    def applied(self, run_id: str, seq: int) -> None:
        """Record up to which amendment a trainer has come."""
        self._session.execute(
            update(AmendedRun).where(AmendedRun.run_id == run_id).values(applied=seq, updated_at=now())
        )


def _words(changes: Iterable[Mapping[str, object]]) -> str:
    """Return changes as a part of a sentence."""
    return ", ".join(f"{change['path']} from {show(change['old'])} to {show(change['new'])}" for change in changes)


class AmendmentWriter:
    """Reads amendments, and notes which of them the trainer has applied."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def after(self, seq: int) -> tuple[AmendmentRef, ...]:
        """Return the amendments behind `seq`. Not fenced: amendments never change."""
        with self._fence.database.read() as session:
            return AmendmentRepository(session).refs(self._fence.run_id, seq)

    def applied(self, seq: int, changes: Sequence[Mapping[str, object]], step: int) -> None:
        """Record that the trainer applies an amendment from agent step `step` of all behaviors on. Raises LeaseLost."""
        with self._fence.write() as (session, run):
            AmendmentRepository(session).applied(run.id, seq)
            data = {"seq": seq, "step": step, "changes": [dict(change) for change in changes]}
            note = Note("hyperparameters_changed", f"Changed {_words(changes)} at step {step}.", data=data)
            self._fence.record(session, note)


class RunChanges(Write):
    """Changes of a run that has not ended."""

    behaviors: dict[str, JsonObject] = Field(
        default={},
        max_length=256,
        examples=[{"Walker": {"hyperparameters": {"learning_rate": 1e-4}, "max_steps": 800_000}}],
    )
    """Parts of behaviors' sections, by the behaviors' names: `max_steps`, some of the `hyperparameters`, and the limits
    of `divergence`. What cannot be changed is refused by name.
    """
    environment_parameters: dict[ParameterName, EnvironmentParameterChange] = Field(default={}, max_length=1000)
    """Another lesson or value, by the parameter's name, as `PATCH .../environment_parameters` takes it."""
    record: Annotated[bool | float | JsonObject, OneOf("true, false, a share, or an object")] | None = Field(
        default=None, examples=[True, {"share": 0.1}]
    )
    """Another `simulators.record`: which sessions are recorded from now on. Keys that a mapping lacks stay."""


class RunUpdate(RunChanges):
    """At least one change. Name and tags change in runs that have ended, too."""

    name: RunName | None = None
    """Another name; null: the run's id."""
    tags: list[Tag] | None = Field(default=None, max_length=50)
    """All tags, in place of those that it has; null: none."""
    add_tags: list[Tag] = Field(default=[], max_length=50)
    """Tags to add. Tags that other requests add meanwhile stay."""
    remove_tags: list[Tag] = Field(default=[], max_length=50)
    """Tags that it shall not have."""

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        labels = self.model_fields_set & {"name", "tags"} or self.add_tags or self.remove_tags
        if not (self.changes_training or labels):
            raise ValueError("give behaviors, environment_parameters, record, name, tags, add_tags or remove_tags")
        if both := sorted({*self.add_tags} & {*self.remove_tags}):
            raise ValueError(f"{', '.join(both)} is to be added and removed")
        return self

    @property
    def changes_training(self) -> bool:
        """Whether it is about what the trainer does."""
        return bool(self.behaviors or self.environment_parameters) or self.record is not None


class AmendmentService:
    """Changes of runs. The session's owner commits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._runs = RunRepository(session)
        self._amendments = AmendmentRepository(session)

    def locked(self, run: str) -> Run:
        """Return a run, locked until the commit. Raises RunNotFound."""
        return self._reloaded(self._runs.lock(run))

    def change(self, run: str, wanted: RunChanges) -> Run:
        """Do what is wanted, all or none. Raises RunNotFound, RunEnded, InvalidEdit."""
        locked = self._runs.lock_live(run)
        if wanted.behaviors or wanted.record is not None:
            amended, changes = amend(locked.parsed_config, wanted.behaviors, wanted.record)
            plain = [{"path": change.path, "old": change.old, "new": change.new} for change in changes]
            if plain:
                amendment = self._amendments.add(locked, plain, amended)
                message = f"A user changed {_words(plain)}; it takes effect with the next update."
                data = {"seq": amendment.seq, "changes": plain}
                ask(self._session, locked.id, Note("hyperparameter_change_requested", message, data=data))
        if wanted.environment_parameters:
            ParameterService(self._session).edit(locked.id, wanted.environment_parameters, ("environment_parameters",))
        return self._reloaded(locked)

    def update(self, run: str, wanted: RunUpdate) -> Run:
        """Do what is wanted, all or none. Raises RunNotFound, RunEnded, InvalidEdit, TooManyTags."""
        locked = self._runs.lock(run)
        fields = wanted.model_fields_set
        self._runs.label(
            locked,
            name=wanted.name or (locked.id if "name" in fields else None),
            tags=(wanted.tags or ()) if "tags" in fields else None,
            add=wanted.add_tags,
            remove=wanted.remove_tags,
        )
        if wanted.changes_training:
            return self.change(locked.id, wanted)
        return self._reloaded(locked)

    def _reloaded(self, run: Run) -> Run:
        """Return a locked run as it is now, and with its configuration: it was loaded without."""
        self._session.refresh(run)
        self._session.refresh(run, ["config"])
        return run
