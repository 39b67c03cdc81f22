"""Runs, their attempts and amendments."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from ludus.schemas.configs import ConfigWarning, ResolvedConfig
from ludus.schemas.states import RunKind, RunState, StopReason


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The fields that a run has in lists, too."""

    id: str
    kind: RunKind
    name: str
    """Not unique; in a path it stands for the newest run of that name."""
    project: str = "default"
    tags: tuple[str, ...]
    state: RunState
    stop_reason: StopReason | None = None
    """Why the run stopped or paused."""
    stop_detail: str | None = None
    """The same as a sentence for people."""
    intent: str | None = None
    """`pause`, `stop` or `cancel`: requested and not done yet."""
    config_name: str | None = None
    """Stored configuration that the run was created from."""
    config_version: int | None = None
    seed: int
    priority: int
    """Of a project's runs, those with a higher one are trained first."""
    attempt: int
    """Number of the newest attempt; 0 before the first."""
    step: int
    """Agent steps of all behaviors together."""
    max_steps: int | None = None
    """Agent steps at which it is complete: `max_steps` of the named behaviors together; null where that ends nothing
    (`evaluate`, `match`)."""
    steps_per_second: float | None = None
    """Agent steps per second of all behaviors together, as of their newest summaries; null unless it is RUNNING, where
    it stands still, and before its first summary."""
    finishes_at: datetime | None = None
    """When it reaches `max_steps` at this speed; null where one of them is unknown."""
    simulators: int = 0
    """Simulators that are connected now."""
    waits_for: str | None = None
    """The reason why a run does not continue, as a sentence for people: it waits for simulators, for a worker that can
    train it, or for a slot, with the runs that hold the slots; null where it waits for nothing. The names of runs in
    other projects are left out."""
    needs_action: bool = False
    """Whether the run continues only after a person acts: it is paused, or has had no simulator or no worker that can
    train it for so long that none is to be expected (docs/lifecycle.md has the rule)."""
    findings: tuple[str, ...] = ()
    """Codes of the findings about its learning that hold now, or held at its end; `/v1/runs/{run}/health` explains
    them. A run that SUCCEEDED with some ended with warnings."""
    restarts_without_progress: int
    created_at: datetime
    queued_at: datetime | None = None
    started_at: datetime | None = None
    """When the first attempt was RUNNING."""
    finished_at: datetime | None = None
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class RunListed(RunSummary):
    """A run in a list, with the requested metrics."""

    metrics: dict[str, float | None] = field(default_factory=dict)
    """By the texts of `metrics` in the request; null where the run has no such number."""


@dataclass(frozen=True, kw_only=True)
class DifferingKey:
    """A key of the configuration in which runs differ."""

    path: str
    """Dotted keys."""
    values: tuple[Any, ...]
    """One for each run, in their order; null where a run does not have the key."""


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Several runs side by side."""

    runs: tuple[RunListed, ...]
    """In the order of the request, each once."""
    differing: tuple[DifferingKey, ...]
    """By path. The configurations are complete: every default is filled in."""
    metric_keys: tuple[str, ...]
    """Keys of the metrics that at least one of the runs has recorded."""


@dataclass(frozen=True, kw_only=True)
class SelfPlay:
    """The state of a run's self-play, as its newest trainer reported it."""

    learning_team: int
    """The team that learns; all others play frozen policies."""
    elo: dict[str, float]
    """Elo rating of each behavior's policy that learns: the present one, not the mean of a summary."""


@dataclass(frozen=True, kw_only=True)
class Run(RunSummary):
    """A run."""

    owner: str = ""
    """A label: of one token's runs, those of the owner with fewer in training go first."""
    token_id: str | None = None
    """The token that created it, by which quotas count it; null where no token of the database did."""
    self_play: SelfPlay | None = None
    """Null where no behavior has `self_play`, and before the first learning team."""
    continues: str | None = None
    """The run whose checkpoint it goes on from (`resume_from`), so that the curves of both are one
    (`with_predecessors`); null for a run that begins at step 0, and for one that only plays."""
    continued_by: tuple[str, ...] = ()
    """The runs that go on from one of its checkpoints, the oldest first: the newest 20 of them at most."""
    config: ResolvedConfig
    """The configuration with every default filled in."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The run that a request would create: the answer to `validate_only`."""

    kind: RunKind
    name: str | None = None
    tags: tuple[str, ...]
    priority: int
    owner: str = ""
    config_name: str | None = None
    config_version: int | None = None
    config: ResolvedConfig
    """The configuration with every default filled in."""
    warnings: tuple[ConfigWarning, ...] = ()
    """A run has them as events, `config_doubted`."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One key that was changed."""

    path: str
    """Dotted keys."""
    old: Any = None
    new: Any = None


@dataclass(frozen=True, kw_only=True)
class Amendment:
    """One change of a run's configuration."""

    seq: int
    """Counts 1, 2, 3, ... per run."""
    changes: tuple[Change, ...]
    applied: bool
    """Whether a trainer has carried it out; a live run does within seconds."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Amendments:
    """The original configuration of a run, the present one, and the changes between them."""

    original_config: ResolvedConfig
    """The configuration that the run was created with, every default filled in."""
    config: ResolvedConfig
    """The present one: all changes made."""
    amendments: tuple[Amendment, ...] = ()
    """In their order."""
    next_page_token: str = ""
    """Ask for the next page with this as `page_token`; empty on the last page."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One execution of a run by one worker."""

    number: int
    """Counts 1, 2, 3, ... per run."""
    worker_id: str
    step: int
    """Agent steps as of the last heartbeat."""
    resumed_from: str | None = None
    """Checkpoint that it began with."""
    resume_step: int = 0
    endpoints: tuple[dict[str, Any], ...] = ()
    """Addresses of its collectors."""
    fingerprint: dict[str, Any] | None = None
    """The worker that it ran on: release and commit of Ludus, versions of Python, torch, CUDA and the driver,
    processor, cores, memory and GPUs; null where the worker did not report them."""
    started_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    """How it ended: a stop reason, `lease_expired`, `released`, `paused`."""
    detail: str | None = None


class BottleneckCause(StrEnum):
    """The part of a run that limits its speed."""

    GAMES = "games"
    """The games take most of the time."""
    ACTING = "acting"
    """A collector's processor: decoding, the forward pass, the answers."""
    NETWORK = "network"
    """The way to the games and back, or an edge collector's link that is slower than its games."""
    LEARNER = "learner"
    """Simulators wait for an update."""
    STRAGGLERS = "stragglers"
    """Simulators wait for the last steps of a round."""
    TOO_FEW_SIMULATORS = "too_few_simulators"
    """Nothing is busy: simulators and collectors wait for each other in turn, or no simulator plays."""
    CHECKPOINTS = "checkpoints"
    """Simulators wait while a checkpoint is taken."""


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The part that limits a run's speed, measured over the last half minute."""

    cause: BottleneckCause | None = None
    """Null where nothing is measured: the run does not train, or has just begun to."""
    message: str
    """The cause with its figure, as a sentence for people."""
    advice: str | None = None
    """The change that helps, as a sentence for people."""
    share: float | None = None
    """Of the simulators' time that the cause takes, from 0 to 1."""
    steps_per_second: float | None = None
    """Agent steps of all behaviors."""
    steps_per_second_without: float | None = None
    """The same if the cause took no time: `steps_per_second / (1 - share)`."""
    simulator: int | None = None
    """Number of the simulator that the others wait for, where the cause is `stragglers`."""
    measured_at: datetime | None = None
    shares: dict[str, float] = field(default_factory=dict)
    """The shares of all causes, by name."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A request for sampled stacks of a trainer and its collectors."""

    run_id: str
    attempt: int
    number: int
    """Counts 1, 2, 3, ... per attempt."""
    seconds: int
    """How long stacks are sampled."""
    answered: bool = False
    """Whether it is finished, or has failed."""
    log: str | None = None
    """Name of the flame graph (SVG) among the attempt's logs."""
    problem: str | None = None
    """Why there is none, as a sentence for people."""
