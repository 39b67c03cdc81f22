"""What the API says of runs, and what it is told."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from server.kit.http.fields import TEXT, Name, Read, ResolvedConfig, RunName, Tag, Time, Write
from server.kit.http.listing import ListPage
from server.runs.states import RunKind, RunState, StopReason


class RunSummary(Read):
    """A run in a list."""

    id: str
    kind: RunKind
    name: str = Field(description="Not unique; in an address it stands for the newest run of that name.")
    project: str
    tags: list[str]
    state: RunState
    stop_reason: StopReason | None = Field(description="Why the run stopped or paused.")
    stop_detail: str | None = Field(description="The same as a sentence for people.")
    intent: str | None = Field(description="`pause`, `stop` or `cancel`, asked for and not done yet.")
    config_name: str | None = Field(description="Stored configuration that the run was created from.")
    config_version: int | None
    seed: int
    priority: int = Field(description="Of a project's runs, those with a higher one are trained first.")
    epoch: int = Field(description="Number of the newest attempt; 0 before the first.")
    step: int = Field(description="Agent steps of all behaviors together.")
    waits_for: str | None = Field(
        description="What a run that does not go on waits for, as a sentence for people: simulators, a worker that can "
        "train it, or a slot, with the runs that hold the slots; null where it waits for nothing. Of runs in other "
        "projects the names are left out."
    )
    restarts_without_progress: int
    created_at: Time
    queued_at: Time | None
    started_at: Time | None = Field(description="When the first attempt was RUNNING.")
    finished_at: Time | None
    updated_at: Time


class SelfPlayRead(Read):
    """Where a run's self-play is, as its newest trainer last said."""

    learning_team: int = Field(description="The team that learns; all others play frozen policies.")
    elo: dict[str, float] = Field(
        description="Elo rating of each behavior's policy that learns: the present one, not the mean of a summary."
    )


class RunRead(RunSummary):
    """A run."""

    owner: str = Field(description="A label: of one token's runs, those of the owner with fewer in training go first.")
    token_id: Annotated[str | None, BeforeValidator(lambda token_id: token_id or None)] = Field(
        description="The token that created it, by which quotas count it; null where no token of the database did."
    )
    needs_action: bool = Field(
        default=False,
        description="Whether the run goes on only when somebody acts: it is paused, or has had no simulator or no "
        "worker that can train it for so long that none is to be expected (docs/lifecycle.md has the rule).",
    )
    self_play: SelfPlayRead | None = Field(
        description="Null where no behavior has `self_play`, and before the first turn."
    )
    config: ResolvedConfig = Field(description="The configuration with every default filled in.")


class RunListed(RunSummary):
    """A run in a list, with the metrics that were asked for."""

    metrics: dict[str, float | None] = Field(
        description="By what was asked for with `metrics`; null where the run has no such number."
    )


class RunPage(ListPage):
    """Runs, without their configurations."""

    runs: list[RunListed]


class ConfigWarning(Read):
    """Something in a configuration that is legal but probably not meant."""

    path: str = Field(description="Where: dotted keys.")
    code: str = Field(description="Stable name.")
    message: str


class RunPlan(Read):
    """What a run would be: the answer to `validate_only`."""

    kind: RunKind
    name: str | None
    tags: list[str]
    priority: int
    owner: str
    config_name: str | None
    config_version: int | None
    config: ResolvedConfig = Field(description="The configuration with every default filled in.")
    warnings: list[ConfigWarning] = Field(description="A run has them as events, `config_doubted`.")


class RunCreate(Write):
    """A run to be queued. Its configuration is `config`, or a stored one, named by `config_name`."""

    config: dict[str, Any] | Annotated[str, StringConstraints(max_length=2**21)] | None = Field(
        default=None,
        description="A configuration as ML-Agents has it (`behaviors: {Name: {trainer_type: ppo, ...}}`): an object, "
        "or its text as YAML or JSON.",
    )
    config_name: Name | None = Field(default=None, description="Name of a stored configuration.")
    config_version: int | None = Field(default=None, ge=1, le=2**31 - 1, description="The newest one by default.")
    overrides: dict[str, Any] = Field(
        default={},
        description="Changes to the configuration by dotted path.",
        examples=[{"behaviors.CartPole.max_steps": 100000}],
    )
    name: RunName | None = Field(default=None, description="Called like its id by default.")
    tags: list[Tag] = Field(default=[], max_length=50, description="For filters.")
    priority: int = Field(
        default=0, ge=-1000, le=1000, description="Of a project's runs, those with a higher one are trained first."
    )
    owner: Annotated[str, StringConstraints(max_length=200, pattern=TEXT)] = Field(
        default="",
        description="A label: of the runs that one token created, those of the owner with fewer in training go first. "
        "Quotas count by project and token, whatever owner is named.",
    )
    kind: RunKind | None = Field(
        default=None, description="What the configuration makes it by default; another kind is refused."
    )
    validate_only: bool = Field(default=False, description="Only check, and answer what the run would be.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.config is None) == (self.config_name is None):
            raise ValueError("give either config or config_name")
        if self.config_version is not None and self.config_name is None:
            raise ValueError("config_version needs config_name")
        return self
