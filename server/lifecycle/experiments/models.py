"""Experiments, their trials, and the runs of these."""

import json

from sqlalchemy import BigInteger, Double, ForeignKey, ForeignKeyConstraint, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Json, Timestamp, ordered_text, partial_index
from server.kit.db.projects import Owned
from server.kit.db.texts import JsonObject

ACTIVE_SQL = "state = 'RUNNING'"
"""Experiments that the controller looks at. Queries use these words, so that SQLite sees that the index applies."""


class Experiment(Owned, Base):
    """Settings of one configuration that are tried and compared."""

    __tablename__ = "experiments"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(ordered_text(100))
    """Unique in its project."""
    description: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    """`ludus.schemas.experiments.ExperimentState`."""
    detail: Mapped[str] = mapped_column(Text, default="")
    """Why it is in this state, as a sentence for people; while it runs: what holds it up, empty if nothing does."""
    spec: Mapped[JsonObject] = mapped_column(Json)
    """The JSON form of `server.lifecycle.experiments.requests.ExperimentSpec`."""
    source: Mapped[str] = mapped_column(Text)
    """The document of which every trial is a variation, as JSON, not resolved. Text: PostgreSQL does not keep the order
    of keys, by which environment parameters get their seeds."""
    revision: Mapped[int] = mapped_column(Integer, default=0)
    """Raised by each change of the experiment and its trials: what was decided on an older one is not carried out."""
    token_id: Mapped[str] = mapped_column(String(40), default="")
    """The token that created it, by which quotas count its runs."""
    active_seconds: Mapped[float] = mapped_column(Double, default=0.0)
    """Time for which it has run until `active_since`, without pauses."""
    active_since: Mapped[float | None] = mapped_column(Timestamp)
    """Since when it runs; None while it doesn't."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    finished_at: Mapped[float | None] = mapped_column(Timestamp)

    @property
    def config(self) -> JsonObject:
        """The document of which every trial is a variation."""
        document: JsonObject = json.loads(self.source)
        return document

    __table_args__ = (
        Index(None, "created_at", "id"),
        Index(None, "project", "name", unique=True),
        partial_index("ix_experiments_active", "id", where=ACTIVE_SQL),
    )


class Trial(Base):
    """One setting of an experiment. Numbers count 0, 1, 2, ..."""

    __tablename__ = "trials"

    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    """`ludus.schemas.experiments.TrialState`."""
    parameters: Mapped[JsonObject] = mapped_column(Json)
    """The value of each key that varies, by its path."""
    value: Mapped[float | None] = mapped_column(Double)
    """Of the objective, over all seeds; None until it is known."""
    detail: Mapped[str] = mapped_column(Text, default="")
    """Why it has no value, as a sentence for people."""
    reports: Mapped[list[tuple[int, float]]] = mapped_column(Json, default=list)
    """(step, value) on which early stopping has decided, steps ascending."""
    attributes: Mapped[JsonObject] = mapped_column(Json, default=dict)
    """State of the sampler and of early stopping for this trial: Optuna's `system_attrs`."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    finished_at: Mapped[float | None] = mapped_column(Timestamp)


class TrialRun(Base):
    """A run of a trial: one seed."""

    __tablename__ = "trial_runs"

    experiment_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    trial: Mapped[int] = mapped_column(Integer, primary_key=True)
    seed: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 0, 1, 2, ... in the trial; the run's own seed is the experiment's plus this. Below 0: a run of a former try
    of the trial, which counts for the budget alone."""
    run_id: Mapped[str] = mapped_column(String(40), index=True)
    """Without a foreign key: the result outlives the run."""
    assessment_id: Mapped[str | None] = mapped_column(String(40))
    """The run that evaluates what it has learned, where the objective asks for one."""
    value: Mapped[float | None] = mapped_column(Double)
    """Of the objective."""
    steps: Mapped[int] = mapped_column(BigInteger, default=0)
    """Agent steps that it took, once it has ended."""
    seconds: Mapped[float] = mapped_column(Double, default=0.0)
    """For which it trained, once it has ended."""
    gpus: Mapped[int] = mapped_column(Integer, default=0)
    """GPUs that it asks for."""
    is_paused: Mapped[bool] = mapped_column(default=False)
    """Whether the experiment was paused while it trained: it is resumed as soon as it has paused, once that goes on."""
    is_open: Mapped[bool] = mapped_column(default=True)
    """Whether it still has to end, or to be evaluated."""

    @property
    def live_id(self) -> str:
        """The run that is under way: the one that evaluates, once there is one."""
        return self.assessment_id or self.run_id

    __table_args__ = (
        ForeignKeyConstraint(["experiment_id", "trial"], ["trials.experiment_id", "trials.number"], ondelete="CASCADE"),
    )
