"""The resources of the HTTP API, as frozen dataclasses: the server answers with them, the client reads them.

Times are aware datetimes in UTC; a value of a metric that is not a finite number is null. The text below a field is its
description in the API's schema. A client ignores fields that it does not know, and gives a missing field its default.
"""

from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from ludus.json_values import JsonObject
from ludus.schemas.experiments import Experiment as Experiment
from ludus.schemas.experiments import ExperimentState as ExperimentState
from ludus.schemas.experiments import Importance as Importance
from ludus.schemas.experiments import PlannedExperiment as PlannedExperiment
from ludus.schemas.experiments import Trial as Trial
from ludus.schemas.experiments import TrialConfig as TrialConfig
from ludus.schemas.experiments import TrialRun as TrialRun
from ludus.schemas.experiments import TrialState as TrialState
from ludus.schemas.experiments import Used as Used
from ludus.schemas.record import FrozenRecord
from ludus.schemas.recordings import MessagePart as MessagePart
from ludus.schemas.recordings import RecordedFrame as RecordedFrame
from ludus.schemas.recordings import RecordedFrames as RecordedFrames
from ludus.schemas.recordings import Recording as Recording
from ludus.schemas.states import RunKind as RunKind
from ludus.schemas.states import RunState as RunState
from ludus.schemas.states import StopReason as StopReason
from ludus.schemas.tokens import AuditEntry as AuditEntry
from ludus.schemas.tokens import Identity as Identity
from ludus.schemas.tokens import NewToken as NewToken
from ludus.schemas.tokens import Scope as Scope
from ludus.schemas.tokens import Token as Token


class ProblemDetail(FrozenRecord):
    """One mistake of a refused request."""

    path: str
    code: str
    """Stable name of the mistake."""
    message: str
    """The mistake and its correction, for people."""
    location: str = "body"
    """`config`, `body`, `query`, `path` or `header`: what `path` is a path in."""
    line: int | None = None
    """Line of the key in a configuration that was sent as text, from 1; of a missing key, that of the next parent."""
    column: int | None = None
    """Column of the key in this line, from 1."""


class Event(FrozenRecord):
    """Something that happened to a run."""

    seq: int
    """Counts 1, 2, 3, ... per run. Gaps are routine events that retention has deleted."""
    at: datetime
    attempt: int | None = None
    """Number of the attempt that it concerns; null where none does."""
    type: str
    """Past tense: `run_created`, `simulator_left`, `checkpoint_saved`."""
    level: str
    """`debug`, `info`, `warning` or `error`."""
    message: str
    """A sentence for people."""
    data: JsonObject = field(default_factory=dict)


class ProjectEvent(Event):
    """Something that happened to a run, among the events of all runs of a project."""

    run_id: str
    run_name: str
    """The run's name when the message was made."""
    state: RunState
    """The run's state when the message was made."""


ResolvedConfig = Annotated[JsonObject, "RunConfig"]
"""A configuration with every default filled in; the API's description refers to the schema of this name."""


class ConfigSummary(FrozenRecord):
    """One version of a stored configuration, without its content."""

    name: str
    version: int
    """Counts 1, 2, 3, ... per name."""
    description: str
    digest: str
    """SHA-256 of the resolved form as canonical JSON."""
    project: str = "default"
    created_at: datetime


class ConfigVersion(ConfigSummary):
    """One immutable version of a stored configuration."""

    source: str
    """The document as it was sent."""
    document: JsonObject
    """The source, parsed."""
    resolved: ResolvedConfig
    """With every default filled in."""


class ConfigChange(FrozenRecord):
    """One difference; a whole section that was added or removed is one."""

    path: str
    kind: Literal["added", "removed", "changed"]
    old: object = None
    """Null if added."""
    new: object = None
    """Null if removed."""


class ConfigDiff(FrozenRecord):
    """The differences between the resolved forms of two versions, or of a version and a run's first configuration."""

    name: str
    old: int
    new: int | None = None
    """Null where it was compared with a run."""
    run: str | None = None
    """The run, as the request named it."""
    changes: tuple[ConfigChange, ...]


class ConfigRewrite(FrozenRecord):
    """A part of an older configuration that has another form now."""

    path: str
    """The former path; `*` stands for each behavior."""
    to: str
    """The present path."""
    old: object = None
    """Null where only the path changed."""
    new: object = None
    why: str


class ConfigDrop(FrozenRecord):
    """A part of an older configuration that the new one does not have."""

    path: str
    """The former path."""
    value: object = None
    why: str


class ConfigProblem(FrozenRecord):
    """A mistake in a configuration."""

    path: str
    """Dotted keys."""
    code: str
    """Stable name."""
    message: str
    line: int | None = None
    """Line of the key in the text, from 1; of a missing key, that of the nearest parent. Null where a document is no
    text, and where an override has set the value."""
    column: int | None = None
    """Column of the key in this line, from 1."""


class ConfigUpgrade(FrozenRecord):
    """A configuration in the present format, and the changes that were made."""

    document: str
    """YAML; without comments, unless nothing changed."""
    unchanged: bool
    """It had the present format already; the document is the one that was sent."""
    changes: tuple[ConfigRewrite, ...]
    dropped: tuple[ConfigDrop, ...]
    problems: tuple[ConfigProblem, ...]
    """For which a run of it would be refused, with their lines in `document`."""


class ConfigWarning(ConfigProblem):
    """A part of a configuration that is legal but probably not intended."""


class PresetSummary(FrozenRecord):
    """A configuration that comes with the server and is known to work, without its text."""

    name: str
    description: str
    """A sentence."""
    trainer_types: tuple[str, ...]
    """Of its behaviors, sorted."""


class Preset(PresetSummary):
    """A configuration that comes with the server and is known to work."""

    source: str
    """YAML, with comments."""


class Finding(FrozenRecord):
    """A fact about a run that a person should know: a cause with its number, and one remedy."""

    code: str
    """Snake case; docs/health.md has all of them. A behavior has each code once."""
    behavior: str | None = None
    """Null where the whole run is meant."""
    message: str
    """The fact with its number and its cause, as a sentence for people."""
    remedy: str
    """The one change that helps, as a sentence for people."""
    figures: JsonObject = field(default_factory=dict)
    """The numbers of the message, for programs."""
    since_step: int = 0
    """Agent steps of the behavior (or of the run) at which the fact began."""
    since: datetime
    """When it was found."""


class Health(FrozenRecord):
    """The findings of a run."""

    findings: tuple[Finding, ...] = ()
    """Those that hold now, oldest first; once the run has ended, those that held at its end. Empty where all is well,
    and while there is nothing to measure."""


STEPS_PER_SECOND: Final = "Performance/Agent Steps per Second"
"""The metric that every summary has, for the speed of runs."""


class Metric(FrozenRecord):
    """The newest value of a metric."""

    behavior: str
    """Empty for metrics of the run as a whole."""
    key: str
    step: int
    value: float | None = None
    at: datetime


class Series(FrozenRecord):
    """A metric over time in columns, ascending by step; after down-sampling an entry stands for several points."""

    run_id: str = ""
    """Empty where a server of an older release answers."""
    behavior: str
    key: str
    total: int
    """Number of points behind each entry."""
    steps: tuple[int, ...]
    """Of each entry's last point; with `common_steps` the last step that the entry covers."""
    times: tuple[datetime | None, ...]
    """Of each entry's last point; null where it has none."""
    values: tuple[float | None, ...]
    """Means of the entry's points; null where none is a number."""
    minima: tuple[float | None, ...]
    maxima: tuple[float | None, ...]
    counts: tuple[int, ...]
    """Number of points of each entry."""
    smoothed: tuple[float | None, ...] | None = None
    """Smoothed values at each entry's last point; null where `smoothing` is 0."""


class RunSummary(FrozenRecord):
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


class RunListed(RunSummary):
    """A run in a list, with the requested metrics."""

    metrics: dict[str, float | None] = field(default_factory=dict)
    """By the texts of `metrics` in the request; null where the run has no such number."""


class DifferingKey(FrozenRecord):
    """A key of the configuration in which runs differ."""

    path: str
    """Dotted keys."""
    values: tuple[object, ...]
    """One for each run, in their order; null where a run does not have the key."""


class RunComparison(FrozenRecord):
    """Several runs side by side."""

    runs: tuple[RunListed, ...]
    """In the order of the request, each once."""
    differing: tuple[DifferingKey, ...]
    """By path. The configurations are complete: every default is filled in."""
    metric_keys: tuple[str, ...]
    """Keys of the metrics that at least one of the runs has recorded."""


class SelfPlay(FrozenRecord):
    """The state of a run's self-play, as its newest trainer reported it."""

    learning_team: int
    """The team that learns; all others play frozen policies."""
    elo: dict[str, float]
    """Elo rating of each behavior's policy that learns: the present one, not the mean of a summary."""


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


class PlannedRun(FrozenRecord):
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


class Change(FrozenRecord):
    """One key that was changed."""

    path: str
    """Dotted keys."""
    old: object = None
    new: object = None


class Amendment(FrozenRecord):
    """One change of a run's configuration."""

    seq: int
    """Counts 1, 2, 3, ... per run."""
    changes: tuple[Change, ...]
    applied: bool
    """Whether a trainer has carried it out; a live run does within seconds."""
    created_at: datetime


class Amendments(FrozenRecord):
    """The original configuration of a run, the present one, and the changes between them."""

    original_config: ResolvedConfig
    """The configuration that the run was created with, every default filled in."""
    config: ResolvedConfig
    """The present one: all changes made."""
    amendments: tuple[Amendment, ...] = ()
    """In their order."""
    next_page_token: str = ""
    """Ask for the next page with this as `page_token`; empty on the last page."""


class Attempt(FrozenRecord):
    """One execution of a run by one worker."""

    number: int
    """Counts 1, 2, 3, ... per run."""
    worker_id: str
    step: int
    """Agent steps as of the last heartbeat."""
    resumed_from: str | None = None
    """Checkpoint that it began with."""
    resume_step: int = 0
    endpoints: tuple[JsonObject, ...] = ()
    """Addresses of its collectors."""
    fingerprint: JsonObject | None = None
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


class Bottleneck(FrozenRecord):
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
    learner_idle: float | None = None
    """Share of the trainer's time, from 0 to 1, in which it waits: it neither learns nor works on checkpoints."""
    collectors_idle: float | None = None
    """Share of the collectors' time, mean over them, in which they wait: they compute nothing, though they could."""


class Profile(FrozenRecord):
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


class EnvironmentParameter(FrozenRecord):
    """One environment parameter of a run, and its lesson."""

    name: str
    lesson: int
    """Number of the present lesson, counted from 1; the metric `Environment/Lesson Number/NAME` counts from 0, as
    ML-Agents does."""
    lessons: int
    """Number of lessons; 1 without a curriculum."""
    lesson_name: str
    value: float | JsonObject
    """The value that simulators get: a number, or a sampler."""
    measure: str | None = None
    """The measure that ends the lesson; null where nothing does."""
    measured: float | None = None
    """The newest measure, smoothed if the configuration asks for it; null before the first."""
    threshold: float | None = None
    """The lesson ends above it."""
    episodes: int = 0
    """Finished episodes (of a metric: values) of this lesson in the buffer. It holds as many as the longest
    `min_lesson_length` of the behavior, at least 1."""
    min_lesson_length: int = 0
    waits_for: str
    """The same as a sentence; once the run has ended, the last state. For instance: `lesson 2 of 4 'HighWall': smoothed
    reward 0.61, needs > 0.80; 74 of 100 episodes`."""


class ParameterEdit(FrozenRecord):
    """A requested change that the trainer has not carried out yet."""

    seq: int
    parameter: str
    change: JsonObject
    """`lesson`, counted from 1, or `value`, or both."""
    created_at: datetime


class EnvironmentParameters(FrozenRecord):
    """The environment parameters of a run."""

    parameters: tuple[EnvironmentParameter, ...]
    pending: tuple[ParameterEdit, ...] = ()
    """Requested and not done yet; a live run does it within seconds, others when they continue. Once the run has ended:
    never done."""


class Log(FrozenRecord):
    """A log file of an attempt."""

    attempt: int
    name: str
    size: int
    """Bytes."""
    updated_at: datetime


class LogText(FrozenRecord):
    """A part of a log. Bytes that are no UTF-8 are replaced; a character is never cut in two."""

    text: str
    offset: int
    """Byte in the file at which the text begins."""
    next_offset: int
    """Byte at which the next part begins."""
    size: int
    """Bytes of the whole file at this time."""


class DemandSlots(FrozenRecord):
    """Numbers of live slots that have what a demand needs."""

    idle: int = 0
    busy: int = 0
    cordoned: int = 0
    """With or without a run."""


class QueuedDemand(FrozenRecord):
    """The waiting runs that demand the same of a slot."""

    demand: str
    """Number of GPUs, and labels after a semicolon: `0`, `1`, `1;a100,linux`."""
    gpus: int = 0
    labels: tuple[str, ...] = ()
    runs: int = 0
    startable_runs: int = 0
    """Of them, those that quotas allow to be in training now."""
    missing_slots: int = 0
    """Slots that the startable runs lack beyond the idle ones. An idle slot is counted for one run only."""
    oldest_seconds: float = 0.0
    """Waiting time of the run that has waited longest."""
    pool: str | None = None
    """The declared pool that starts workers for it (`LUDUS_SCHEDULING__POOLS`)."""
    slots: DemandSlots = DemandSlots()
    """Slots that have what it needs."""
    explanation: str | None = None
    """Why no slot takes the runs, if no live slot and no pool serves them."""


class Queue(FrozenRecord):
    """The waiting runs: all of them, or those that were asked for."""

    runs: int
    startable_runs: int = 0
    """Of them, those that quotas allow to be in training now."""
    missing_slots: int = 0
    """Slots that the startable runs lack beyond the idle ones: how many more an autoscaler starts."""
    oldest_seconds: float = 0.0
    """Waiting time of the run that has waited longest."""
    demands: tuple[QueuedDemand, ...] = ()
    """The demand with the most runs first."""


class Simulator(FrozenRecord):
    """One connection of a game process."""

    session_id: str
    """Id of the connection."""
    number: int
    """Its seed is the run's seed + number."""
    label: str
    client: str
    peer: str
    state: str
    """`joined` (has a ticket), `connected` or `left`."""
    attempt: int
    """Number of the attempt that it belongs to."""
    collector: int | None = None
    relayed: bool
    behaviors: tuple[str, ...]
    agents: int
    steps: int
    """Agent steps in its current session."""
    joined_at: datetime
    connected_at: datetime | None = None
    left_at: datetime | None = None
    leave_code: str | None = None
    """Stable name of the reason why it left."""
    leave_reason: str | None = None
    """The same as a sentence."""


class SimulatorListed(Simulator):
    """A simulator in the list of all runs."""

    run_id: str
    run_name: str
    project: str = "default"
    """That of the run."""


class Collector(FrozenRecord):
    """A collector of a run's live attempt: the process that answers simulators with actions."""

    index: int
    """Number of the collector, or of its place."""
    kind: str
    """`local`, on the worker's host, or `edge`, beside the games."""
    address: str
    """Where simulators connect to a local one; where the stream of an edge collector comes from."""
    host: str = ""
    """Name of an edge collector's machine, as it says itself."""
    joined_at: datetime | None = None
    """When an edge collector joined."""
    simulators: int
    """That it serves now."""
    lagged_at: datetime | None = None
    """When the network of an edge collector was first found to be slower than its games; null: it keeps up."""
    waiting_bytes: int = 0
    """That waited for its network then."""


class Worker(FrozenRecord):
    """One slot of a worker host."""

    id: str
    host: str
    pid: int
    version: str
    labels: tuple[str, ...] = ()
    resources: JsonObject = field(default_factory=dict)
    """For instance `{"gpus": ["GPU-5d2f..."]}`."""
    run_id: str | None = None
    """The run that it executes."""
    started_at: datetime
    heartbeat_at: datetime
    silent_since: datetime | None = None
    """Its last sign of life, where it is silent although it has not stopped: it is lost, or does not get on."""
    last_claim_at: datetime | None = None
    stopped_at: datetime | None = None
    cordoned: bool = False
    """Whether it takes no run, because it or its host is cordoned."""
    draining: bool = False
    """Whether it hands its run back, too."""


class SelectedWorkers(FrozenRecord):
    """The slots that a name stands for: one slot, or all of a host."""

    workers: tuple[Worker, ...]
    """None, if the host is cordoned and has not been heard of for long."""


class OnnxTensor(FrozenRecord):
    """An input or output of an ONNX model."""

    name: str
    dtype: str
    """As numpy names it: `float32`, `int64`."""
    shape: tuple[int | str, ...]
    """A text names a dimension that the caller chooses: `batch`, the number of agents."""


class OnnxModel(FrozenRecord):
    """Inputs, outputs and actions of an ONNX model, for the game that loads it."""

    behavior: str
    opset: int
    inputs: tuple[OnnxTensor, ...]
    """In order; `obs_0`, `obs_1`, ... are the behavior's observations in its own order."""
    outputs: tuple[OnnxTensor, ...]
    """In order."""
    continuous_actions: int
    """Number of continuous actions."""
    discrete_branches: tuple[int, ...]
    """Number of choices of each discrete branch."""
    action_masks: bool
    """Whether it takes masks of discrete actions: the input `action_masks`."""
    memory_size: int
    """Width of the memory of a recurrent policy (`recurrent_in`, `recurrent_out`); 0 without one."""


class CheckpointFile(FrozenRecord):
    """One file of a checkpoint."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    """Lower-case hexadecimal; also the ETag of the download."""
    model: OnnxModel | None = None
    """Of an ONNX model; null for other files, and in checkpoints of earlier releases."""


class ScoredBy(FrozenRecord):
    """The measurement behind a score."""

    kind: Literal["episodes", "evaluation", "metric"]
    """`episodes`: the last training episodes before the checkpoint; `evaluation`: episodes of its policy alone;
    `metric`: the number that `keep_best` names."""
    metric: str = "Environment/Cumulative Reward"
    episodes: int | None = None
    """Episodes whose mean return it is; null for a metric."""
    from_step: int | None = None
    """Agent steps of the behavior when the first of them ended; null for a metric."""


class Checkpoint(FrozenRecord):
    """A complete state of a run, with its exported models."""

    id: str
    run_id: str
    attempt: int
    """Number of the attempt that saved it."""
    step: int
    """Agent steps of all behaviors together."""
    steps: dict[str, int]
    """Agent steps per behavior."""
    reason: str
    """`interval`, `final` or `requested`."""
    size: int
    """Bytes of all files."""
    files: tuple[CheckpointFile, ...]
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Per behavior: mean return of the last episodes before it, or of an evaluation (`scored_by`)."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Per behavior (empty: the run as a whole): metrics when the checkpoint was saved, and those of evaluations."""
    score: float | None = None
    """Value by which `best` is chosen, higher is better: the score that `keep_best` names (negated if less is better),
    or the mean of `metrics`."""
    scored_by: ScoredBy | None = None
    """The measurement that `score` is; null without a score, and in checkpoints of earlier releases, whose score is the
    mean return since the checkpoint before."""
    created_at: datetime
    pinned_at: datetime | None = None
    """Since when it is exempt from retention."""
    damaged_at: datetime | None = None
    """When a file was found missing or altered."""
    damage: str | None = None
    """The damaged file, and its problem."""
    deleted_at: datetime | None = None
    """When retention deleted it."""


class CheckpointVerified(FrozenRecord):
    """Result of comparing the checksums of all files of a checkpoint."""

    checkpoint: Checkpoint
    sound: bool
    """Whether every file is as it was stored."""
    problems: tuple[str, ...]
    """One sentence for each file that is not."""
    bytes: int
    """Bytes that were read."""


class PrunedCheckpoint(FrozenRecord):
    """A checkpoint that was deleted, or would be."""

    id: str
    run_id: str
    step: int
    size: int
    """Bytes."""
    created_at: datetime
    rule: Literal["age", "size"]
    """The rule that it violates."""


class Pruned(FrozenRecord):
    """Checkpoints that were deleted, or would be."""

    dry_run: bool
    checkpoints: tuple[PrunedCheckpoint, ...]
    bytes: int
    """Of all of them together."""


class CheckpointRequest(FrozenRecord):
    """A request for a checkpoint now."""

    run_id: str
    seq: int
    """Counts 1, 2, 3, ... per run."""
    created_at: datetime
    answered_at: datetime | None = None
    """Null until the trainer has written it."""
    checkpoint_id: str | None = None
    """The checkpoint, once it is stored."""
    problem: str | None = None
    """Why there is none, as a sentence."""


class UploadedCheckpoint(FrozenRecord):
    """A checkpoint that was uploaded, for behaviors to begin with (`initialize_from`)."""

    id: str
    name: str
    """For people; not unique."""
    behavior: str | None = None
    """The behavior that it was trained for, if the upload named one."""
    format: str
    """`mlagents`: a `checkpoint.pt`; `ludus`: the format of `ludus learn`, a whole checkpoint of a run."""
    modules: tuple[str, ...]
    """Names of the modules in the file, as in `Policy`, `Optimizer:critic`."""
    file: str
    """Name of the file in the artifact store."""
    size: int
    """Bytes of the file."""
    sha256: str
    """Of the file, lower-case hexadecimal."""
    project: str = "default"
    created_at: datetime


class Alias(FrozenRecord):
    """A name of a checkpoint that can be moved to another one."""

    name: str
    """Unique in its project."""
    project: str = "default"
    checkpoint_id: str
    run_id: str
    """The run that saved the checkpoint."""
    step: int
    """Its agent steps, of all behaviors together."""
    version: int
    """Number of moves, counted from 1; goes on where the alias was deleted and set again."""
    created_at: datetime
    moved_at: datetime
    moved_by: str | None = None
    """Name of the token that moved it last; null where that is not known."""


class AliasMove(FrozenRecord):
    """One move of an alias, or its deletion."""

    alias: str
    project: str = "default"
    version: int
    """Number of the move, counted from 1."""
    checkpoint_id: str | None
    """The checkpoint from then on, which may since have been deleted; null: the alias was deleted."""
    moved_at: datetime
    moved_by: str | None = None
    """Name of the token; null for moves from before this history was kept."""


Verdict = Literal["pass", "fail", "undecided"]


class MatchResult(FrozenRecord):
    """Games of a candidate against a champion."""

    kind: Literal["match"]
    verdict: Verdict | None = None
    """Null while the run continues."""
    behavior: str
    candidate: str
    """Its checkpoint."""
    champion: str
    """Its checkpoint."""
    games: int
    wins: int
    """Of the candidate."""
    draws: int
    losses: int
    compare: Literal["outcome", "return"] = "outcome"
    """`return`: both played a game of one player in turn, and the higher return won."""
    paired: bool
    """Games count in pairs with the same seed and swapped sides, or compare returns of the same seed; otherwise each
    game counts alone."""
    mean: float | None = None
    """Of the candidate's returns, where these are compared."""
    champion_mean: float | None = None
    """Of the champion's."""
    difference_low: float | None = None
    """Lower end of the 95 % interval of the difference of both means."""
    difference_high: float | None = None
    """Upper end."""
    pairs: tuple[int, ...] | None = None
    """Number of pairs in which the candidate got 0, 1, 2, 3 and 4 half points."""
    score: float | None = None
    """Mean of 1 for a win and 1/2 for a draw."""
    elo: float | None = None
    """Lead of the candidate; null where all games, or none, were won."""
    elo_low: float | None = None
    """Lower end of its 95 % score interval; null: unbounded."""
    elo_high: float | None = None
    """Upper end; null: unbounded."""
    llr: float
    """Log-likelihood ratio of a lead of `elo1` against one of `elo0`."""
    llr_lower: float
    """At or below it the candidate fails."""
    llr_upper: float
    """At or above it the candidate passes."""
    elo0: float
    elo1: float
    alpha: float
    beta: float
    max_games: int


class EvaluationResult(FrozenRecord):
    """Episodes of a policy that plays alone."""

    kind: Literal["evaluate"]
    verdict: Verdict | None = None
    """Null while the run continues."""
    behavior: str
    checkpoint: str
    episodes: int
    """Played so far."""
    wanted: int
    seeded: bool
    """Simulators take the seeds of episodes from the run."""
    mean: float | None = None
    """Of the undiscounted returns."""
    low: float | None = None
    """Lower end of the interval of the mean, bootstrapped; null: a single episode has none."""
    high: float | None = None
    """Upper end of the interval."""
    confidence: float
    deviation: float | None = None
    least: float | None = None
    most: float | None = None
    mean_length: float | None = None
    """Decisions per episode."""
    threshold: float | None = None


class Assessment(FrozenRecord):
    """The result so far of a run that evaluates policies."""

    run_id: str
    attempt: int
    """Number of the attempt that reported it."""
    result: MatchResult | EvaluationResult
    checkpoint_runs: dict[str, str] = field(default_factory=dict)
    """The run of each checkpoint in the result, as far as it is there."""
    updated_at: datetime


class RecordedObservation(FrozenRecord):
    """One observation of an agent."""

    name: str
    shape: tuple[int, ...]
    """For one agent: (size), (channels, height, width) or (entities, size)."""
    dtype: str
    """`float32` or `uint8`."""
    type: str
    """`default` or `goal_signal`."""
    dimension_properties: tuple[str, ...]
    """As many as `shape` has, or none."""


class RecordedActions(FrozenRecord):
    """The actions of an agent."""

    continuous_size: int
    discrete_branches: tuple[int, ...]
    """Number of choices of each branch."""


class RecordedBehavior(FrozenRecord):
    """Observations and actions of a behavior."""

    name: str
    observations: tuple[RecordedObservation, ...]
    actions: RecordedActions


class Spread(FrozenRecord):
    """Mean and range over complete episodes."""

    mean: float
    std: float
    minimum: float
    maximum: float


class DemonstrationStatistics(FrozenRecord):
    """The content of a demonstration, in numbers."""

    transitions: int
    episodes: int
    """Complete ones, which `returns` and `lengths` describe."""
    fragments: int
    """Pieces without their beginning or end: cut recordings, sampled transitions."""
    terminated: int
    """Number of pieces that ended by termination."""
    truncated: int
    """Pieces that a limit ended."""
    returns: Spread | None = None
    """Undiscounted; null without a complete episode."""
    lengths: Spread | None = None
    """Steps; null without a complete episode."""
    continuous: tuple[tuple[int, ...], ...]
    """For each continuous action, how often it lay in each of 20 equal bins over [-1, 1]."""
    discrete: tuple[tuple[int, ...], ...]
    """For each branch, how often each choice was taken."""


class DemonstrationSummary(FrozenRecord):
    """A demonstration in a list."""

    id: str
    name: str
    """For people; not unique."""
    behavior: str
    """The behavior that was recorded, as its simulator named it."""
    format: str
    """`mlagents` (a `.demo` file) or `ludus` (`.npz`)."""
    spec: RecordedBehavior
    transitions: int
    episodes: int
    """Complete ones."""
    mean_return: float | None = None
    """Of the complete episodes; null without any."""
    size: int
    """Bytes of the file."""
    sha256: str
    """Of the file, lower-case hexadecimal; also the ETag of the download."""
    origin: JsonObject
    """The demonstrations that it was merged or subsampled from; empty if uploaded."""
    project: str = "default"
    created_at: datetime


class Demonstration(DemonstrationSummary):
    """A recording of good behavior, with its statistics."""

    summary: DemonstrationStatistics
    """Episodes, returns and actions."""


class Ladder(FrozenRecord):
    """A set of players that are compared with each other."""

    id: str
    name: str
    """A run's own ladder has the run's name."""
    description: str
    run_id: str | None = None
    """The run that owns this ladder; null for a shared one."""
    initial_elo: float
    """Of players that are registered without an Elo."""
    players: int
    """Number of players."""
    matches: int
    """Number of the newest match; superseded ones have numbers, too."""
    rated_through: int
    """All matches up to this number are in ratings and payoffs."""
    project: str = "default"
    created_at: datetime


class Player(FrozenRecord):
    """A player of a ladder."""

    id: int
    """Counts 1, 2, 3, ... in the ladder."""
    name: str
    """Of a run's policy `RUN/BEHAVIOR`, of a snapshot of it `RUN/BEHAVIOR#NUMBER`, with the run's present name; others
    are named when they are registered."""
    kind: str
    """`policy` (the one that a run trains), `snapshot` (of it), `checkpoint`, `scripted` or `human`."""
    run_id: str | None = None
    behavior: str | None = None
    snapshot: int | None = None
    """Its number."""
    checkpoint_id: str | None = None
    step: int | None = None
    """Training steps of the policy: of a snapshot when it was taken, of a learning policy in its newest match."""
    fixed: bool
    """Its ratings are given and never change."""
    created_at: datetime


class Rating(FrozenRecord):
    """The strength of a player."""

    id: int
    """The player's number."""
    name: str
    kind: str
    run_id: str | None = None
    behavior: str | None = None
    snapshot: int | None = None
    step: int | None = None
    fixed: bool
    elo: float
    """As ML-Agents computes it: K = 1, scale 400."""
    mu: float
    """Mean of the estimated strength (Weng and Lin 2011), 25 at first."""
    sigma: float
    """Standard deviation of the estimate, 25/3 at first."""
    ordinal: float
    """mu - 3 sigma: a value that its strength very probably exceeds."""
    games: int
    """Rated matches against other players."""


class RatingSeries(FrozenRecord):
    """A player's ratings over its matches in columns, thinned to evenly spaced ones; the last entry is the newest."""

    id: int
    name: str
    total: int
    """The player's rated matches."""
    games: tuple[int, ...]
    """The number of rated matches before each entry."""
    matches: tuple[int, ...]
    """Their numbers in the ladder."""
    steps: tuple[int | None, ...]
    """Training steps of the policy."""
    times: tuple[datetime, ...]
    elo: tuple[float, ...]
    mu: tuple[float, ...]
    sigma: tuple[float, ...]


class RatingHistory(FrozenRecord):
    """One series per player."""

    rated_through: int
    """All matches up to this number are included."""
    series: tuple[RatingSeries, ...]


class PayoffPlayer(FrozenRecord):
    """A row and column of the payoff matrix."""

    id: int
    name: str
    kind: str


class Payoffs(FrozenRecord):
    """Results of each player against each other one: rows against columns, in the players' order."""

    rated_through: int
    """All matches up to this number are included."""
    players: tuple[PayoffPlayer, ...]
    wins: tuple[tuple[int, ...], ...]
    draws: tuple[tuple[int, ...], ...]
    losses: tuple[tuple[int, ...], ...]
    games: tuple[tuple[int, ...], ...]
    scores: tuple[tuple[float | None, ...], ...]
    """Mean score, a draw counting as half a win; null where they never met."""


class Participant(FrozenRecord):
    """One side of a match."""

    player: int
    """The player's number."""
    name: str
    team: int
    rank: int
    """1 is best; participants with equal ranks drew."""
    score: float | None = None
    """The reported score; null where the outcome was reported."""
    step: int | None = None
    """Training steps of the policy."""


class Match(FrozenRecord):
    """A finished match."""

    seq: int
    """Counts 1, 2, 3, ... in the ladder; the order in which matches are rated."""
    at: datetime
    outcome: str
    """Of the first participant: `win`, `draw` or `loss`."""
    truncated: bool
    """It was interrupted."""
    rated: bool
    """Whether the match counts. A match whose opponents changed during it does not."""
    superseded_by: int | None = None
    """The attempt that continued from before this match; the match does not count any more."""
    run_id: str | None = None
    """The run that played it; null, as are the next six, if it was reported."""
    attempt: int | None = None
    behavior: str | None = None
    """The behavior whose team learned."""
    number: int | None = None
    """Counts the matches of that behavior in the run."""
    simulator: int | None = None
    step: int | None = None
    elo: float | None = None
    """Of the learning policy after the match, as the trainer computed it."""
    participants: tuple[Participant, ...]


class Webhook(FrozenRecord):
    """A URL that receives events."""

    id: str
    url: str
    description: str
    events: tuple[str, ...]
    """Types of events; `*` stands for any text."""
    run_id: str | None = None
    """Only this run's events; null for all runs."""
    tag: str | None = None
    """Only events of runs with this tag; null for all runs."""
    enabled: bool
    disabled_reason: str | None = None
    """`user`, `gone` (the receiver answered 410) or `failing` (a message was given up after all its retries, and no
    other was delivered since it was created); null while it is enabled."""
    failing_since: datetime | None = None
    """First failure since the newest success; null if there is none."""
    last_success_at: datetime | None = None
    former_until: datetime | None = None
    """Until then messages are signed with the previous secret, too; null if it was never rotated."""
    created_at: datetime
    updated_at: datetime


class WebhookWithSecret(Webhook):
    """A webhook with its secret, which no later answer has."""

    secret: str = field(repr=False)
    """`whsec_...`, for the receiver's verification. It is shown only once."""


class DeliveryAttempt(FrozenRecord):
    """One attempt to deliver a message."""

    number: int
    """Counts 1, 2, 3, ... per delivery."""
    at: datetime
    """When it ended."""
    seconds: float
    status: int | None = None
    """HTTP status; null where no answer came."""
    error: str | None = None
    """Why it failed, as a sentence; null where it succeeded."""
    response: str | None = None
    """The first characters of the receiver's answer."""


class Delivery(FrozenRecord):
    """A message for a webhook, with its attempts."""

    id: str
    """The `webhook-id` of each attempt, by which receivers recognize repetitions."""
    webhook_id: str
    type: str
    """The event's; `webhook_test` for a test."""
    run_id: str | None = None
    seq: int | None = None
    """The event's number in its run."""
    state: str
    """`pending`, `succeeded` or `failed` (given up)."""
    attempts: int
    """Number of attempts so far."""
    next_try_at: datetime | None = None
    """When it is tried again at the latest; null if it is over."""
    waits_for: str | None = None
    """Why a pending message is not sent, as a sentence: its webhook is disabled; null otherwise."""
    created_at: datetime
    ended_at: datetime | None = None
    log: tuple[DeliveryAttempt, ...] = ()
    """All finished attempts, in order."""


class DeliveryWithPayload(Delivery):
    """A message for a webhook, with its attempts and its body."""

    payload: str
    """The body, byte for byte."""
