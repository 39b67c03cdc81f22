"""The configuration of a whole run: its behaviors, and their common sections."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from ludus.config.assessment import AssessmentSettings, EvaluateSettings, MatchSettings, checkpoints_of
from ludus.config.behavior import BehaviorConfig
from ludus.config.builds import EngineSettings, EnvironmentSettings
from ludus.config.environment_parameters import Curriculum, EnvironmentParameter, Lesson, ParameterName, seeded
from ludus.config.imitation import FromDemonstrations
from ludus.config.problems import Path
from ludus.config.recording import RecordConfig
from ludus.config.selfplay import RANDOM, followed_run, parse_opponent
from ludus.config.trainer import DemonstratedConfig, ReinforcementConfig
from ludus.config.values import (
    BehaviorName,
    CheckpointId,
    Flag,
    Label,
    Own,
    PositiveReal,
    Real,
    Section,
    Seed,
    Text,
    Whole,
    config_error,
)
from ludus.names import is_name
from ludus.protocol.environment_parameters import ParameterValue
from ludus.schemas.states import RunKind
from ludus.validation import Form


class CollectorsConfig(Section):
    """The collectors of a run: processes on the worker's host, and places for edge collectors beside the games."""

    local: Own[Whole | None] = Field(default=None, ge=0, le=256)
    """Collectors on the worker's host; null = as many as the worker is set to (`LUDUS_WORKER__COLLECTORS`). With 0 all
    games connect through edge collectors.
    """
    edge: Own[Whole] = Field(default=16, ge=0, le=256)
    """Edge collectors that can collect for the run at the same time: `ludus collect RUN`, `ludus unity`, or `ludus
    simulate`, on the games' machines; 0 forbids them. The first one that asks makes the worker listen for them on one
    port more; without any, places cost nothing.
    """

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.local == 0 and not self.edge:
            raise config_error("contradiction", "is 0 as local is: no game could connect", at="edge")
        return self


class SimulatorsConfig(Section):
    """Time-outs of the trainer for simulators, and the collectors that serve them."""

    collectors: Own[CollectorsConfig] = CollectorsConfig()
    """Where games are served: on the worker's host, and beside the games."""
    grace_seconds: Own[PositiveReal] = 60.0
    """Seconds without any simulator, after there was one, before the run pauses."""
    startup_grace_seconds: Own[PositiveReal | None] = 600.0
    """Seconds that a run waits for its first simulator, in each attempt, before it pauses; null = no limit, for an
    Editor in which a person presses Play later.
    """
    auto_resume: Own[Flag] = True
    """Whether a run that has paused because it had no simulator (`simulators_lost`) resumes by itself when one joins. A
    run that a user has paused never does.
    """
    startup_timeout_seconds: Own[PositiveReal | None] = 600.0
    """Seconds that a connected simulator may take for its first step (games load for minutes); null = no limit."""
    step_timeout_seconds: Own[PositiveReal] = 60.0
    """Seconds that a simulator may take for any later step before its session ends. Default:
    `env_settings.timeout_wait`.
    """
    record: Own[RecordConfig] = RecordConfig()
    """The flight recorder: which sessions are recorded. `true` = all, `false` = none, a number = that share of them."""
    unity_port: Own[Whole | None] = Field(default=None, ge=1, le=65_535)
    """Port on the worker's own host to which Unity builds connect without a bridge, as with ML-Agents (the Editor:
    5004); null = builds connect through `ludus unity`.
    """


class Resources(Section):
    """The run's requirements on its worker's slot."""

    gpu: Own[Whole] = Field(default=0, ge=0, le=64)
    """GPUs that the slot must have; 0 = any slot is enough, and a GPU is used if the slot has one."""
    labels: Own[list[Label]] = Field(default=[], max_length=8)
    """Labels that the worker must have, all of them (`LUDUS_WORKER__LABELS`)."""


Device = Annotated[str, Form("cpu, cuda or cuda:N (N is 0 to 999)", r"^(cpu|cuda(:[0-9]{1,3})?)$")]


class TorchSettings(Section):
    """Devices of PyTorch."""

    device: Device | None = None
    """`cpu`, `cuda` or `cuda:N`; null = cuda if the worker has it, else cpu."""
    collector_device: Own[Device | None] = None
    """Device of the collectors' policies: `cpu`, `cuda` or `cuda:N`; null = cpu. A GPU is for pictures, entities,
    memories and goals; policies with only vectors always act in numpy on the CPU. Each collector uses some of the GPU's
    memory.
    """
    bf16: Own[Flag] = False
    """Compute visual networks in bfloat16 on a GPU: faster, about 3 digits; weights stay float32. On a CPU nothing
    changes, and an event says so.
    """
    compile: Own[Flag] = False
    """Fuse the operations of PPO's update with `torch.compile`, in the background while training continues. With other
    trainers, or without a C++ compiler on the worker nothing changes, and an event says so.
    """
    processes: Own[Whole] = Field(default=1, ge=1, le=64)
    """Ranks that learn as one, on the GPUs from `device` on (`cuda:0` and 4: the first four). Each has its own
    collectors (as many as `simulators.collectors.local` says), rollout and replay buffer, and takes minibatches of
    `batch_size`; gradients and statistics are averaged. So an update learns from as many times `buffer_size` and
    `batch_size`. Every rank needs a simulator. More than one needs as many GPUs in `resources.gpu`, unless `device` is
    `cpu`.
    """
    rank_timeout_seconds: Own[Real] = Field(default=45.0, ge=2.0, le=3600.0)
    """A rank that is silent for so long has frozen: the attempt ends, and the next one goes on from the last
    checkpoint.
    """


class KeepBest(Section):
    """The metric that compares checkpoints, and the number of best ones to keep beside the newest."""

    metric: Own[Annotated[Text, StringConstraints(min_length=1, max_length=200)]] = "Environment/Cumulative Reward"
    """A metric of the run, with its last value before the checkpoint; or a score that an evaluation stores afterwards
    under a name of your choice (`ludus checkpoint score`).
    """
    mode: Own[Literal["max", "min"]] = "max"
    """Whether higher values are better, or lower."""
    behavior: Own[BehaviorName | None] = None
    """The behavior whose metric counts; null = the mean of all that have it."""
    count: Own[Whole] = Field(default=1, ge=1, le=100_000)
    """Number of best checkpoints to keep."""


class CheckpointSettings(Section):
    """The run's name, the run that it continues, and the checkpoints to keep beside the newest."""

    run_id: Annotated[Text, StringConstraints(min_length=1, max_length=200)] = "ppo"
    """The run's name, if the request has none; `ppo` means no name."""
    initialize_from: Annotated[Text, StringConstraints(min_length=1, max_length=4096)] | None = None
    """Folder in `results_dir` of a run to start from. A path, which a server refuses."""
    load_model: Flag = False
    """The former name of `resume`."""
    resume: Flag = False
    """Continue the run of this `run_id`."""
    force: Flag = False
    """Overwrite an earlier run. On a server nothing is overwritten: runs have ids."""
    train_model: Flag = False
    """Without effect, here and in ML-Agents."""
    inference: Flag = False
    """Play without learning, until the run is stopped or all simulators have left: summaries are written, checkpoints
    are not. Use it with `resume_from`; otherwise the policy is untrained.
    """
    results_dir: Annotated[Text, StringConstraints(min_length=1, max_length=4096)] = "results"
    """Folder of the results. A path, which a server refuses."""
    resume_from: Own[CheckpointId | None] = None
    """Continue exactly where this checkpoint of another run was taken, at its step and with its complete state.
    Behaviors that it does not have start as configured.
    """
    keep_best: Own[KeepBest | None] = None
    """Keep the best checkpoints, too; `keep_checkpoints` keeps the newest. null = none, and `best` is the one with the
    highest mean return of its last episodes.
    """


class RunConfig(Section):
    """A run's configuration with every default filled in: what is stored with the run and what the worker reads."""

    schema_version: Own[Literal[1]] = 1
    """Version of this format; raised when a key changes its meaning."""
    default_settings: BehaviorConfig | None = None
    """Template: each behavior starts from it, maps merged key by key, a signal set to null dropped. It also trains
    behaviors that a simulator announces and `behaviors` does not name.
    """
    behaviors: dict[BehaviorName, BehaviorConfig] = Field(default={}, max_length=256)
    """The behaviors to train, by their names in the game (without `?team=`); `Name: {}` = all defaults. With
    `default_settings` there may be none: every behavior that a simulator announces is trained by those.
    """
    env_settings: EnvironmentSettings = EnvironmentSettings()
    """The Unity build, and the number of copies."""
    engine_settings: EngineSettings = EngineSettings()
    """Engine options of Unity builds."""
    environment_parameters: dict[ParameterName, EnvironmentParameter] = Field(default={}, max_length=1000)
    """Numbers that every simulator receives when it connects and resets: fixed, drawn, or by lessons."""
    checkpoint_settings: CheckpointSettings = CheckpointSettings()
    """The run's name, the run that it continues, and its checkpoints."""
    torch_settings: TorchSettings = TorchSettings()
    """Devices of PyTorch."""
    debug: Flag = False
    """Log every step of the trainer in the attempts' logs (`ludus run logs`): granted and collected rounds, each update
    with its measurements, published policies, reports of collectors, commands, checkpoints.
    """
    seed: Own[Seed | None] = None
    """Seed of everything random; simulator number n gets seed + n. Default: `env_settings.seed`. Null = drawn at
    creation.
    """
    simulators: Own[SimulatorsConfig] = SimulatorsConfig()
    """Time-outs of the trainer for simulators."""
    resources: Own[Resources] = Resources()
    """The run's requirements on its worker."""
    match: Own[MatchSettings | None] = None
    """Evaluate without learning: two checkpoints play against each other. `behaviors` may then be left out."""
    evaluate: Own[EvaluateSettings | None] = None
    """Evaluate without learning: a checkpoint plays a number of episodes. `behaviors` may then be left out."""

    @field_validator("behaviors")
    @classmethod
    def _some_behavior(cls, behaviors: dict[str, BehaviorConfig], info: ValidationInfo) -> dict[str, BehaviorConfig]:
        template = info.data.get("default_settings")
        if not behaviors and template is None and "default_settings" in info.data:
            raise config_error("missing", "is missing")
        if not behaviors and isinstance(template, DemonstratedConfig):
            message = f"names none, and trainer_type {template.trainer_type} learns only those that are named"
            raise config_error("contradiction", message)
        return behaviors

    @field_validator("torch_settings")
    @classmethod
    def _no_exploiter_in_ranks(cls, settings: TorchSettings, info: ValidationInfo) -> TorchSettings:
        sections = [*(info.data.get("behaviors") or {}).values(), info.data.get("default_settings")]
        selves = [each.self_play for each in sections if isinstance(each, ReinforcementConfig) and each.self_play]
        if settings.processes > 1 and any(each.exploiter is not None for each in selves):
            message = (
                f"is {settings.processes}, but an exploiter (self_play.exploiter) is reset in one process; leave it 1"
            )
            raise config_error("contradiction", message, at="processes")
        return settings

    @field_validator("evaluate")
    @classmethod
    def _one_assessment(cls, evaluate: EvaluateSettings | None, info: ValidationInfo) -> EvaluateSettings | None:
        if evaluate is not None and info.data.get("match") is not None:
            raise config_error("contradiction", "a run has either a `match` or `evaluate`; remove one of them")
        return evaluate

    @field_validator("match", "evaluate")
    @classmethod
    def _nothing_else(cls, assessment: AssessmentSettings | None, info: ValidationInfo) -> AssessmentSettings | None:
        if assessment is None:
            return None
        behaviors, checkpoints = info.data.get("behaviors"), info.data.get("checkpoint_settings")
        if behaviors is not None and assessment.behavior not in behaviors:
            names = ", ".join(behaviors)
            message = f"is {assessment.behavior!r}, which is not among `behaviors`: {names}; name one of them"
            raise config_error("contradiction", message, at="behavior")
        if checkpoints is not None:
            for key in ("resume_from", "inference"):
                if getattr(checkpoints, key):
                    where = f"checkpoint_settings.{key}"
                    raise config_error(
                        "contradiction", f"does not go together with {where}, which is for training; remove it"
                    )
        return assessment

    @property
    def assessment(self) -> AssessmentSettings | None:
        """The assessment of the run; None if it trains."""
        return self.match or self.evaluate

    @field_validator("seed")
    @classmethod
    def _one_seed(cls, seed: int | None, info: ValidationInfo) -> int | None:
        environment = info.data.get("env_settings")
        game_seed = -1 if environment is None else environment.seed
        if game_seed in {-1, seed}:
            return seed
        if seed is None:
            return int(game_seed)
        raise config_error(
            "contradiction",
            f"is {seed}, but env_settings.seed is {game_seed}; both mean the run's seed: remove one of them",
        )

    @field_validator("simulators", mode="before")
    @classmethod
    def _as_patient_as_ml_agents(cls, simulators: object, info: ValidationInfo) -> object:
        environment = info.data.get("env_settings")
        if environment is None:
            return simulators
        if isinstance(simulators, SimulatorsConfig):
            simulators = simulators.model_dump(exclude_unset=True)
        if not isinstance(simulators, dict):
            return simulators
        return {"step_timeout_seconds": environment.timeout_wait, **simulators}

    def behavior(self, name: str) -> BehaviorConfig | None:
        """Return how a behavior of this name (without `?team=`) is trained; None if it is not to be trained."""
        return self.behaviors.get(name, self.default_settings)

    def trainers(self) -> dict[Path, BehaviorConfig]:
        """Return how behaviors are trained, by paths: the template of all first, if there is one."""
        trainers: dict[Path, BehaviorConfig] = {
            ("behaviors", name): section for name, section in self.behaviors.items()
        }
        return trainers if self.default_settings is None else {("default_settings",): self.default_settings} | trainers

    def demonstrations(self) -> Mapping[Path, list[str]]:
        """Return the ids of the demonstrations that are needed, by the paths of the keys that list them."""
        return {
            (*path, "demonstrations"): section.demonstrations
            for path, section in self.imitating().items()
            if section.demonstrations
        }

    def imitating(self) -> Mapping[Path, FromDemonstrations]:
        """Return the sections that need demonstrations, by their paths."""
        return {path: inner for top, section in self.trainers().items() for path, inner in _imitating(section, top)}

    def initial_checkpoints(self) -> Mapping[Path, str]:
        """Return the ids of the checkpoints that the run begins with, and plays against, by the paths of the keys that
        name them."""
        resumed = self.checkpoint_settings.resume_from
        checkpoints: dict[Path, str] = {
            (*path, "initialize_from"): section.initialize_from
            for path, section in self.trainers().items()
            if section.initialize_from is not None
        }
        checkpoints |= {
            (*path, "self_play", "opponents", index): parse_opponent(opponent)[0]
            for path, section in self.trainers().items()
            if isinstance(section, ReinforcementConfig) and section.self_play is not None
            for index, opponent in enumerate(section.self_play.opponents)
            if opponent != RANDOM and followed_run(opponent) is None
        }
        if resumed is not None:
            checkpoints["checkpoint_settings", "resume_from"] = resumed
        if self.assessment is not None:
            kind = "match" if self.match is not None else "evaluate"
            checkpoints |= {(kind, key): checkpoint for key, checkpoint in checkpoints_of(self.assessment).items()}
        return checkpoints

    def followed_runs(self) -> set[str]:
        """Return the ids or names of the runs whose newest policies are opponents (`self_play.opponents`)."""
        sections = [section for section in self.trainers().values() if isinstance(section, ReinforcementConfig)]
        opponents = [opponent for one in sections if one.self_play is not None for opponent in one.self_play.opponents]
        return {run for opponent in opponents if (run := followed_run(opponent)) is not None}

    @property
    def name(self) -> str | None:
        """The run's name in the document; None if there is none that is legal."""
        run_id = self.checkpoint_settings.run_id
        return run_id if run_id != "ppo" and is_name(run_id) else None

    def lessons(self) -> dict[str, list[Lesson]]:
        """Return the lessons of each environment parameter; a plain value is the only lesson of its parameter."""
        return {
            name: form.curriculum if isinstance(form, Curriculum) else [Lesson(name=name, value=form)]
            for name, form in self.environment_parameters.items()
        }

    def first_lessons(self) -> dict[str, int]:
        """Return the index, from 0, of the lesson that each environment parameter begins with."""
        parameters = self.environment_parameters.items()
        return {name: form.first if isinstance(form, Curriculum) else 0 for name, form in parameters}

    def samplers(self, seed: int) -> dict[str, ParameterValue]:
        """Return what each environment parameter is at the beginning of the run: the value of its first lesson.

        Samplers without a seed get theirs from the run's, `seed`, as `with_seed` says.
        """
        first = self.first_lessons()
        return {name: lessons[first[name]].sampler for name, lessons in self.with_seed(seed).lessons().items()}

    def with_seed(self, seed: int) -> "RunConfig":
        """Return the configuration of a run with this seed: every sampler has one of its own.

        To be called while the parameters stand in the document's order, which a database may not keep.
        """
        return self.model_copy(
            update={"seed": seed, "environment_parameters": seeded(self.environment_parameters, seed)}
        )

    @property
    def kind(self) -> RunKind:
        """The kind of a run with this configuration."""
        if self.match is not None:
            return RunKind.MATCH
        if self.evaluate is not None:
            return RunKind.EVALUATE
        trainers = {getattr(behavior, "trainer_type", None) for behavior in self.behaviors.values()}
        return RunKind.CLONE if trainers == {"clone"} else RunKind.TRAIN

    @property
    def max_steps(self) -> int | None:
        """Agent steps of all named behaviors together, at which the run is complete; None for an assessment, and where
        none is named."""
        return None if self.assessment else sum(behavior.max_steps for behavior in self.behaviors.values()) or None


def _imitating(section: Section, path: Path) -> Iterator[tuple[Path, FromDemonstrations]]:
    """Iterate over those of a section and the sections inside it that need demonstrations."""
    if isinstance(section, FromDemonstrations):
        yield path, section
    for key in type(section).model_fields:
        for below, inner in _sections(getattr(section, key), (*path, key)):
            yield from _imitating(inner, below)


def _sections(value: object, path: Path) -> Iterator[tuple[Path, Section]]:
    """Yield a key's value, or the elements of a list, as far as they are sections."""
    if isinstance(value, Section):
        yield path, value
    elif isinstance(value, list):
        yield from (((*path, index), item) for index, item in enumerate(value) if isinstance(item, Section))
