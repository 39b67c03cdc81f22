"""Experiments, their trials, and the runs of these."""

from dataclasses import field
from datetime import datetime
from enum import StrEnum

from ludus.json_values import JsonObject
from ludus.schemas.record import FrozenRecord
from ludus.schemas.states import RunState

LEAST_TRIALS = 8
"""Complete trials before it is said which keys matter."""


class ExperimentState(StrEnum):
    """The state of an experiment."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    """A user has paused it, with its runs."""
    FINISHED = "FINISHED"
    """Its budget is used up, every setting was tried, or a user stopped it. More budget lets it go on."""
    FAILED = "FAILED"
    """It cannot go on by itself; `detail` says why. Its runs are paused. `:resume` tries again."""


class TrialState(StrEnum):
    """The state of a trial."""

    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    """Every seed has its value."""
    PRUNED = "PRUNED"
    """Early stopping ended it: others were better at the same step."""
    STOPPED = "STOPPED"
    """The experiment ended before it, or a user ended a run of it. `:retry` tries it again."""
    FAILED = "FAILED"
    """A run failed, or has no value; `detail` says why."""


class TrialRun(FrozenRecord):
    """A run of a trial: one seed."""

    seed: int
    """Counts 0, 1, 2, ... in the trial; the run's own seed is the experiment's plus this."""
    run_id: str
    assessment_id: str | None = None
    """The run that evaluates what it has learned, where the objective asks for one."""
    state: RunState | None = None
    """Of the run, or of the one that evaluates it; null once the run is deleted."""
    value: float | None = None
    """Of the objective."""


class Trial(FrozenRecord):
    """One setting of an experiment."""

    number: int
    """Counts 0, 1, 2, ... in the experiment."""
    state: TrialState
    parameters: JsonObject
    """The value of each key that varies, by its path."""
    value: float | None = None
    """Of the objective: the interquartile mean over all seeds."""
    detail: str = ""
    """Why it has no value."""
    reports: tuple[tuple[int, float], ...] = ()
    """(step, value) on which early stopping has decided, or the population has compared."""
    parent: int | None = None
    """Of a population: the trial with whose weights it began; null where it began anew."""
    runs: tuple[TrialRun, ...] = ()
    created_at: datetime
    finished_at: datetime | None = None


class Used(FrozenRecord):
    """How much of a budget is used."""

    runs: int = 0
    steps: int = 0
    """Agent steps."""
    gpu_hours: float = 0.0
    hours: float = 0.0
    """For which the experiment has run, without pauses, until `since`."""
    since: datetime | None = None
    """Since when it runs; null while it doesn't."""


class Experiment(FrozenRecord):
    """Settings of one configuration that are tried and compared."""

    id: str
    name: str
    description: str
    state: ExperimentState
    detail: str = ""
    """Why it is in this state; while it runs: what holds it up, empty if nothing does."""
    spec: JsonObject
    """Parameters, sampler, seeds, objective and budget, with every default filled in."""
    config: JsonObject
    """The configuration of which every trial is a variation, as it was sent."""
    trials: JsonObject = field(default_factory=dict)
    """Number of trials by state."""
    used: Used = Used()
    best: Trial | None = None
    """The complete trial with the best value so far."""
    project: str = "default"
    created_at: datetime
    finished_at: datetime | None = None


class PlannedExperiment(FrozenRecord):
    """An experiment that passes all checks and was not created."""

    name: str
    description: str
    spec: JsonObject
    """With every default filled in."""
    config: JsonObject


class Importance(FrozenRecord):
    """How much of the differences between trials each key that varies explains."""

    shares: JsonObject
    """By path, 0 to 1, together 1, the highest first; empty while fewer than `LEAST_TRIALS` have a value."""
    trials: int
    """Complete trials."""


class TrialConfig(FrozenRecord):
    """The configuration of one trial, as a document."""

    number: int
    config: JsonObject
