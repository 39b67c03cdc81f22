"""Runs, their attempts, their events, and the workers that execute them."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    ScalarSelect,
    String,
    Text,
    func,
    select,
    text,
)
from sqlalchemy.orm import InstrumentedAttribute, Mapped, column_property, mapped_column

from ludus.config.run import RunConfig
from server.kit.db.base import CLUSTERED, Base, Json, Timestamp, ordered_text, partial_index
from server.kit.db.clock import later
from server.kit.db.projects import Owned
from server.kit.db.texts import JsonObject
from server.runs.scheduling.demand import LARGEST

CLAIMABLE_SQL = "state IN ('QUEUED', 'RECOVERING')"
"""`server.kit.states.CLAIMABLE` in SQL. Queries use these words, so that SQLite sees that the index below applies."""
WAITING_SQL = "state || '' IN ('QUEUED', 'RECOVERING')"
"""The same, in words that the many indexes on `state` can't answer: SQLite would take one of them, and sort."""
UNPURGED_SQL = "purge_at IS NOT NULL"
"""Deleted runs whose files are still to be removed. Queries use these words, so that the index below applies."""
LEASED_SQL = "state || '' IN ('STARTING', 'RUNNING', 'PAUSING', 'STOPPING')"
"""`server.kit.states.LEASED` in SQL, likewise."""


class Lease(Base):
    """The lease of a run's live attempt, and its progress: the one row that a heartbeat writes.

    The row is narrow, has no index but its key, and its pages stay nearly empty: PostgreSQL updates it in place (HOT),
    and logs only the bytes behind `worker_id`, which change. A row grows by half with its first `time_spent`: on a page
    that was half full, there would then be no place for a second version of each. It is deleted when the attempt ends;
    `attempts` and `runs` keep its values then.
    """

    __tablename__ = "leases"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer)
    worker_id: Mapped[str] = mapped_column(String(80))
    expires_at: Mapped[float] = mapped_column(Timestamp)
    """On the database's clock."""
    renewed_at: Mapped[float] = mapped_column(Timestamp)
    step: Mapped[int] = mapped_column(BigInteger)
    """Agent steps of all behaviors together."""
    step_at: Mapped[float] = mapped_column(Timestamp)
    """When the step moved last."""
    time_spent: Mapped[bytes | None] = mapped_column(LargeBinary)
    """`server.runs.diagnosis.TimeSpent.pack`."""

    __table_args__ = ({"postgresql_with": {"fillfactor": "20"}},)


def of_lease(column: InstrumentedAttribute[Any], run_id: Any) -> ScalarSelect[Any]:
    """Return an SQL expression: a column of the lease of a run; null where no lease of this release holds it."""
    return select(column).where(Lease.run_id == run_id).correlate_except(Lease).scalar_subquery()


class Run(Owned, Base):
    """One job: a kind, a resolved configuration, a state. See `server.kit.states` for its life."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(ordered_text(200))
    """Not unique; where a name stands for a run, the newest of that name is meant."""
    tags: Mapped[list[str]] = mapped_column(Json, default=list)
    """Copy of `run_tags` for reading, sorted."""
    state: Mapped[str] = mapped_column(String(16))
    stop_reason: Mapped[str | None] = mapped_column(String(32))
    stop_detail: Mapped[str | None] = mapped_column(Text)
    """A sentence for people."""
    config_name: Mapped[str | None] = mapped_column(String(200))
    """Stored configuration that it came from, with `config_version`."""
    config_version: Mapped[int | None] = mapped_column(Integer)
    seed: Mapped[int] = mapped_column(BigInteger)
    priority: Mapped[int] = mapped_column(Integer, default=0)
    """Higher first."""
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    """Fencing number: raised by each claim; a write that carries an older one is refused."""
    intent: Mapped[str | None] = mapped_column(String(16))
    """Requested by a user and not done yet: `pause`, `stop`, `cancel`, or nothing."""
    stored_step: Mapped[int] = mapped_column("step", BigInteger, default=0)
    """The step as of the end of the newest attempt. Of a live one the lease knows it: see `step`."""
    restarts_without_progress: Mapped[int] = mapped_column(Integer, default=0)
    event_seq: Mapped[int] = mapped_column(Integer, default=0)
    """Sequence number of the newest event."""
    simulator_seq: Mapped[int] = mapped_column(Integer, default=0)
    """Number that the next simulator gets."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    queued_at: Mapped[float | None] = mapped_column(Timestamp)
    started_at: Mapped[float | None] = mapped_column(Timestamp)
    """First time RUNNING."""
    finished_at: Mapped[float | None] = mapped_column(Timestamp)
    stored_updated_at: Mapped[float] = mapped_column("updated_at", Timestamp)
    """The last change of this row; all that wait for events look here. See `updated_at`."""
    config: Mapped[JsonObject] = mapped_column(Json)
    """Resolved: every default filled in (`RunConfig.model_dump(mode="json")`). The last column of the first release,
    because it is the big one: SQLite reads the others without touching it."""
    owner: Mapped[str] = mapped_column(ordered_text(200), default="", server_default="")
    """Free text. Of the runs that one token created, those of the owner with fewer in training go first."""
    token_id: Mapped[str] = mapped_column(String(40), default="", server_default="")
    """The token that created it, by which quotas count; empty: no token of the database did, or the release before
    `0012`. No foreign key: the number of a token that is deleted still counts."""
    demand: Mapped[str] = mapped_column(ordered_text(LARGEST), default="", server_default="")
    """Its requirements on a slot: `server.runs.scheduling.demand.Demand.text`."""
    waits_for: Mapped[str | None] = mapped_column(Text)
    """Why no worker can take it, as a sentence for people; None where it only waits for its turn."""
    self_play: Mapped[JsonObject | None] = mapped_column(Json)
    """`learning_team`, and `elo` by behavior, as the newest trainer last said; None where nothing plays itself."""
    max_steps: Mapped[int | None] = mapped_column(BigInteger)
    """`RunConfig.max_steps`: lists show it and do not read the configuration. None also for a run that the release
    before `0021` created while the database was at it already."""
    health: Mapped[list[JsonObject] | None] = mapped_column(Json)
    """`ludus.schemas.Finding` of each that holds now, or held at the end; None where there is none."""
    requests: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    """Raised by each request to the run's trainer (`server.runs.events.repository.ask`): heartbeats return it, and the
    supervisor reads the requests only when it has moved."""
    awaited_until: Mapped[float | None] = mapped_column(Timestamp)
    """Until then a game counts as waiting for the run: the gateway writes it while a simulator asks for its place
    (`server.simulators.repository.Placement`). Infinite for a run that needs no game."""

    step: Mapped[int] = column_property(
        func.coalesce(of_lease(Lease.step, id), stored_step)  # noqa: A003  # the column above
    )
    """Agent steps of all behaviors together, as of the last heartbeat."""
    updated_at: Mapped[float] = column_property(
        later(stored_updated_at, func.coalesce(of_lease(Lease.step_at, id), 0.0))  # noqa: A003  # likewise
    )
    """The last change of this row, or of the step."""

    @property
    def parsed_config(self) -> RunConfig:
        """The configuration as a model. Raises pydantic's `ValidationError` if a newer release stored it."""
        return RunConfig.model_validate(self.config)

    # Each order of the list has an index of its own and one behind the state, so that a page is read in order, whatever
    # state is asked for. The other fields have one each for telling rare conditions from common ones; see
    # `server.runs.repository`.
    __table_args__ = (
        Index(None, "created_at", "id"),
        Index(None, "updated_at", "id"),
        Index(None, "name", "id"),
        Index(None, "step", "id"),
        Index(None, "state", "id"),
        Index(None, "state", "created_at", "id"),
        Index(None, "state", "updated_at", "id"),
        Index(None, "state", "name", "id"),
        Index(None, "state", "step", "id"),
        Index(None, "name", "created_at", "id"),
        Index(None, "finished_at", "id"),
        Index(None, "kind", "id"),
        Index(None, "project", "id"),
        Index(None, "stop_reason", "id"),
        partial_index("ix_runs_claimable", "priority", "queued_at", where=CLAIMABLE_SQL),
        partial_index(
            "ix_runs_share", "project", "token_id", "owner", "demand", "priority", "queued_at", "id", where=WAITING_SQL
        ),
        partial_index("ix_runs_awaited", "awaited_until", where=WAITING_SQL),
        partial_index("ix_runs_training", "project", "token_id", "owner", where=LEASED_SQL),
    )


BEHIND = (
    Run.config,
    Run.owner,
    Run.demand,
    Run.waits_for,
    Run.token_id,
    Run.self_play,
    Run.max_steps,
    Run.health,
    Run.requests,
    Run.awaited_until,
)
"""Columns that may lie behind the first page of a row in SQLite. Lists and fenced writes leave them out."""


class RunTag(Base):
    """One tag of a run, for filters."""

    __tablename__ = "run_tags"

    tag: Mapped[str] = mapped_column(ordered_text(100), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, index=True)

    __table_args__ = CLUSTERED


class Attempt(Base):
    """One execution of a run by one worker.

    `lease_expires_at`, `heartbeat_at`, `step` and `time_spent` are as of the end. Of a live attempt `Lease` has them.
    """

    __tablename__ = "attempts"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    worker_id: Mapped[str] = mapped_column(String(80), index=True)
    lease_expires_at: Mapped[float | None] = mapped_column(Timestamp, index=True)
    """None once the attempt has ended."""
    heartbeat_at: Mapped[float] = mapped_column(Timestamp)
    endpoints: Mapped[list[JsonObject]] = mapped_column(Json, default=list)
    """Collectors: `[{"address": "host:port", "index": 0}]`, empty until they listen."""
    step: Mapped[int] = mapped_column(BigInteger, default=0)
    resumed_from: Mapped[str | None] = mapped_column(String(40))
    """Checkpoint id."""
    resume_step: Mapped[int] = mapped_column(BigInteger, default=0)
    """Step of that checkpoint; 0 from the beginning. A checkpoint beyond it is progress."""
    fingerprint: Mapped[JsonObject | None] = mapped_column(Json)
    """Its platform: release, commit, libraries and hardware of the worker (`worker.host.gpus`)."""
    outcome: Mapped[str | None] = mapped_column(String(32))
    """The reason of its end: a StopReason, `paused`, `lease_expired`, or the supervisor's when it released the run."""
    detail: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[float] = mapped_column(Timestamp)
    ended_at: Mapped[float | None] = mapped_column(Timestamp)
    time_spent: Mapped[JsonObject | None] = mapped_column(Json)
    """Where its newest time went (`server.runs.diagnosis.TimeSpent`), in the end."""
    profile: Mapped[JsonObject | None] = mapped_column(Json)
    """The newest request for a profile: `ludus.schemas.Profile` without run and attempt."""
    places_asked: Mapped[bool | None] = mapped_column()
    """Whether an edge collector has asked for a place while there was none; the gateway writes it, once."""
    places_problem: Mapped[str | None] = mapped_column(Text)
    """Why no places can be opened for it."""
    edge_collectors: Mapped[list[JsonObject] | None] = mapped_column(Json)
    """Those that collect now (`server.simulators.repository`); None before the first one."""


class DeletedAttempts(Base):
    """Totals of the attempts that were deleted with their runs: what is counted over all attempts never falls.

    A trigger on `attempts` fills them, in the transaction that deletes (migration `0029`).
    """

    __tablename__ = "deleted_attempts"

    outcome: Mapped[str] = mapped_column(String(32), primary_key=True)
    """As in `Attempt`; empty for None."""
    attempts: Mapped[int] = mapped_column(BigInteger)
    agent_steps: Mapped[int] = mapped_column(BigInteger)
    """That they trained, beyond the steps that they resumed from."""


class DeletedRun(Owned, Base):
    """A run that was deleted. The files below `runs/ID` of the artifact store are to be removed.

    The run's own row goes last, behind all that hang on it: while it is there, no list shows it (`BEING_DELETED`).
    """

    __tablename__ = "deleted_runs"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    deleted_at: Mapped[float] = mapped_column(Timestamp)
    purge_at: Mapped[float | None] = mapped_column(Timestamp)
    """When its files are removed next; None once that is over."""

    __table_args__ = (partial_index("ix_deleted_runs_unpurged", "purge_at", where=UNPURGED_SQL),)


BEING_DELETED = select(DeletedRun.id).where(text(UNPURGED_SQL))
"""Ids of runs that were deleted a short time ago, some of which still have rows: few, for `NOT IN`."""


class Event(Base):
    """Something that happened to a run; `seq` counts 1, 2, 3, ... per run. Retention may delete some."""

    __tablename__ = "events"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float] = mapped_column(Timestamp)
    attempt: Mapped[int | None] = mapped_column(Integer)
    type: Mapped[str] = mapped_column(String(64))
    """Past tense, snake case: `run_created`, `simulator_left`, `checkpoint_saved`."""
    level: Mapped[str] = mapped_column(String(8), default="info")
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[JsonObject] = mapped_column(Json, default=dict)

    __table_args__ = CLUSTERED


class Log(Base):
    """A log file of an attempt in the artifact store (`trainer.log`, `supervisor.log`)."""

    __tablename__ = "logs"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(BigInteger)
    updated_at: Mapped[float] = mapped_column(Timestamp)
