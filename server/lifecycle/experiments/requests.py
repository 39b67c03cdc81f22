"""Request bodies about experiments; the larger part of them is what an experiment stores as its `spec`."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from ludus.metric_keys import full_key
from ludus.validation import NAME, OneOf
from server.kit.db.texts import JsonObject
from server.kit.http.fields import Document, Name, Text, Write

Scalar = Annotated[bool | int | float | str | None, OneOf("a number, a text, true, false or null")]
Number = Annotated[int | float, OneOf("a number"), Field(ge=-1e300, le=1e300)]
MAX_SETTINGS = 100_000
"""Of a grid."""
ExperimentName = Annotated[str, StringConstraints(max_length=100), NAME]
"""Shorter than the names of runs: a run's has the trial and the seed behind it."""


class Parameter(Write):
    """A key that varies: between `min` and `max`, or over `values`."""

    values: list[Scalar] | None = Field(default=None, min_length=1, max_length=1000)
    """Each of these; not with `min` and `max`."""
    min: Number | None = None
    """Lowest value. Where this, `max` and `step` are whole numbers, so is every value."""
    max: Number | None = None
    """Highest value."""
    scale: Literal["linear", "log"] = "linear"
    """`log`: values are drawn evenly in their logarithm."""
    step: Number | None = Field(default=None, gt=0)
    """Distance between neighbouring values, from `min` on; not with `scale: log`."""

    @model_validator(mode="after")
    def _values_or_range(self) -> Self:
        ends = self.min is not None, self.max is not None
        if (self.values is None) == (ends == (False, False)) or any(ends) != all(ends):
            raise ValueError("give either values, or min and max")
        if self.values is not None and (self.step is not None or self.scale == "log"):
            raise ValueError("has values; step and scale are for a range")
        if self.values is not None and len({(type(value), value) for value in self.values}) < len(self.values):
            raise ValueError("has a value twice")
        if self.min is not None and self.max is not None:
            if self.min >= self.max:
                raise ValueError(f"has no room: min is {self.min:g}, and max is {self.max:g}; max must be greater")
            if self.scale == "log" and (self.min <= 0 or self.step is not None):
                raise ValueError("with scale log needs a min above 0, and takes no step")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether every value of the range is a whole number."""
        return all(isinstance(number, int) for number in (self.min, self.max, self.step) if number is not None)

    @property
    def extremes(self) -> tuple[Scalar, ...]:
        """The values that show whether a configuration takes the key: all values, or both ends."""
        return (self.min, self.max) if self.values is None else tuple(self.values)

    @property
    def grid(self) -> list[Scalar]:
        """All values, in their order; of a range without a step, the whole numbers in it."""
        if self.values is not None:
            return list(self.values)
        assert self.min is not None
        assert self.max is not None
        step = self.step or 1
        return [min(self.max, self.min + step * index) for index in range(self.count)]

    @property
    def count(self) -> int:
        """Number of all values, without making them."""
        if self.values is not None:
            return len(self.values)
        assert self.min is not None
        assert self.max is not None
        return math.floor((self.max - self.min) / (self.step or 1) + 1e-9) + 1

    def holds(self, value: object) -> bool:
        """Return whether a value is one that the key may take."""
        if self.values is not None:
            return any(type(value) is type(allowed) and value == allowed for allowed in self.values)
        assert self.min is not None
        assert self.max is not None
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        offset = (value - self.min) / (self.step or 1)
        return self.min <= value <= self.max and (self.step is None or abs(offset - round(offset)) < 1e-9)


class Objective(Write):
    """The number by which trials are compared: a metric, or the result of a run that evaluates what was learned."""

    metric: Annotated[str, StringConstraints(min_length=1, max_length=200)] = "reward"
    """A key, or a short name: the mean over the last summaries of the run."""
    behavior: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    """The behavior that has the metric; needed where several have it."""
    last: int = Field(default=5, ge=1, le=1000)
    """Summaries over which the mean is taken."""
    mode: Literal["max", "min"] = "max"
    """Whether higher or lower values are better."""
    evaluate: JsonObject | None = None
    """The section `evaluate` of a configuration, without its checkpoint: each run's newest one is evaluated, and the
    mean return counts. `{}` has its defaults.
    """
    match: JsonObject | None = None
    """The section `match` of a configuration, without its candidate: the score of each run's newest checkpoint against
    `champion` counts, from 0 to 1.
    """
    rating: Literal["elo", "mu", "ordinal"] | None = None
    """The rating of each run's policy on its ladder counts, in place of a metric. Runs are compared by it on a ladder
    that they share (`self_play.ladder`).
    """

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.evaluate, self.match, self.rating)) > 1:
            raise ValueError("give one of evaluate, match and rating")
        self.metric = full_key(self.metric)
        return self

    @property
    def compares(self) -> str:
        """Name of the value that is read of a run which trains, for messages."""
        return self.metric if self.rating is None else f"{self.rating} on its ladder"

    @property
    def assessment(self) -> tuple[str, str, JsonObject] | None:
        """Section, the key of its checkpoint, and the section's content, of the run that evaluates; None: a metric."""
        if self.evaluate is not None:
            return "evaluate", "checkpoint", self.evaluate
        return None if self.match is None else ("match", "candidate", self.match)


class EarlyStopping(Write):
    """When trials end before their steps are used up, because others were better at the same step."""

    type: Literal["asha", "hyperband", "median"] = "asha"
    """`asha`: asynchronous successive halving (Li et al. 2018, arXiv 1810.05934): at `min_steps` times 1,
    `reduction_factor`, its square, ..., the best share goes on. `hyperband`: the same with several such ladders of
    different patience (Li et al. 2018, JMLR 18). `median`: a trial goes on while it is better than the median of all
    before it.
    """
    min_steps: int | None = Field(default=None, ge=1, le=2**53)
    """Agent steps before which no trial ends. Default: a ninth of the configuration's `max_steps`."""
    max_steps: int | None = Field(default=None, ge=1, le=2**53)
    """Agent steps of a whole trial, for `hyperband`. Default: the configuration's."""
    reduction_factor: int = Field(default=3, ge=2, le=100)
    """One in so many goes on."""

    @model_validator(mode="after")
    def _above(self) -> Self:
        if self.max_steps is not None and self.min_steps is not None and self.max_steps <= self.min_steps:
            raise ValueError(f"has a max_steps of {self.max_steps}, which is not above min_steps, {self.min_steps}")
        return self

    def completed(self, max_steps: int) -> Self:
        """Return the rule for runs of this many steps."""
        limit = max_steps if self.max_steps is None else self.max_steps
        least = max(1, limit // 9) if self.min_steps is None else self.min_steps
        return self.model_copy(update={"max_steps": limit, "min_steps": least})


class Population(Write):
    """Population based training (Jaderberg et al. 2017): members train at once, and the worst are replaced by changed
    copies of the best, weights and all.
    """

    members: int = Field(default=16, ge=2, le=1000)
    """Runs that train at once."""
    interval: int = Field(ge=1, le=2**53)
    """Agent steps between two comparisons of a member with the others."""
    quantile: float = Field(default=0.25, gt=0, le=0.5)
    """Share of the members that is copied, and share that gives up. Typical: 0.2 to 0.25."""
    factors: list[Annotated[float, Field(gt=0, le=100)]] = Field(default=[0.8, 1.25], min_length=1, max_length=10)
    """By one of which each number of a copied setting is changed."""
    resample: float = Field(default=0.1, ge=0, le=1)
    """Probability that a value is drawn anew instead."""


class Budget(Write):
    """What an experiment may use; at the first limit it ends. What is left out has no limit."""

    runs: int | None = Field(default=None, ge=1, le=100_000)
    """Runs that are started. Those that then train are trained to their end."""
    steps: int | None = Field(default=None, ge=1, le=2**53)
    """Agent steps of all runs together. Beyond it, runs are stopped; so they are with the next two."""
    gpu_hours: float | None = Field(default=None, gt=0, le=1e9)
    hours: float | None = Field(default=None, gt=0, le=1e6)
    """For which the experiment runs, without pauses."""


class ExperimentSpec(Write):
    """What an experiment tries, and how long."""

    parameters: dict[Annotated[str, StringConstraints(min_length=1, max_length=400)], Parameter] = Field(
        default={}, max_length=64, examples=[{"behaviors.CartPole.hyperparameters.num_epoch": {"min": 2, "max": 10}}]
    )
    """The keys that vary, by dotted path. None: those that decide most often for the trainer of each behavior."""
    sampler: Literal["tpe", "random", "grid", "qmc", "cmaes", "gp"] = "tpe"
    """How settings are chosen. `tpe` learns from those that are complete (Bergstra et al. 2011); `grid` tries every
    combination of values; `random` draws; `qmc` draws evenly (Sobol); `cmaes` (Hansen 2016) and `gp` (Gaussian
    processes) learn, too. All are Optuna's; the last three need further packages on the server.
    """
    baseline: bool | None = None
    """Whether the first trial has the values of the configuration itself, where they lie in the space. Default: true;
    with `grid` false.
    """
    seeds: int = Field(default=1, ge=1, le=100)
    """Runs of each setting, with different seeds."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1001)
    """Of the sampler and of each setting's first run; drawn if not given."""
    objective: Objective = Field(default_factory=Objective)
    early_stopping: EarlyStopping | None = None
    population: Population | None = None
    """In place of seeds and early stopping; `sampler` draws the first settings."""
    budget: Budget = Field(default_factory=Budget)
    parallelism: int = Field(default=1, ge=1, le=1000)
    """Runs that are under way at once."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.sampler == "grid":
            for path, parameter in self.parameters.items():
                if parameter.values is None and parameter.step is None and not parameter.is_whole:
                    raise ValueError(f"has the sampler grid, and {path} has neither values nor a step")
            if self.size > MAX_SETTINGS:
                raise ValueError(f"has the sampler grid, and {self.size:,} settings; {MAX_SETTINGS:,} are the most")
        elif self.budget == Budget() and self.population is None:
            raise ValueError(
                "has no budget, and no sampler but grid ends by itself; give budget.runs, or another limit"
            )
        if self.budget.runs is not None and self.budget.runs < self.seeds:
            raise ValueError(f"has budget.runs {self.budget.runs}, and one setting takes {self.seeds} (seeds)")
        if self.sampler == "grid" and self.baseline:
            raise ValueError("has the sampler grid, which tries every setting once; leave baseline out")
        if "seed" in self.parameters:
            raise ValueError("varies seed, which each run gets by seeds")
        if self.early_stopping is not None and self.objective.assessment is not None:
            raise ValueError(
                "has early_stopping, which compares metrics while runs train; leave objective.evaluate out"
            )
        if self.population is not None:
            if self.seeds > 1 or self.early_stopping is not None or self.objective.assessment is not None:
                raise ValueError("has a population, compared by a metric; leave seeds, early_stopping and evaluate out")
            fixed = [path for path in self.parameters if ".network_settings." in path]
            if fixed:
                raise ValueError(f"has a population, whose members copy weights, and varies {fixed[0]}")
            self.parallelism = self.population.members
        self.baseline = self.sampler != "grid" if self.baseline is None else self.baseline
        return self

    @property
    def size(self) -> float:
        """How many settings there are to try: infinitely many unless the sampler is `grid`; of a population the first
        ones.
        """
        if self.population is not None:
            return self.population.members
        if self.sampler != "grid":
            return math.inf
        return math.prod(parameter.count for parameter in self.parameters.values())


class ExperimentCreate(ExperimentSpec):
    """An experiment. Its configuration is `config`, or a stored one, named by `config_name`."""

    name: ExperimentName
    description: Text = ""
    config: Document | None = None
    """A configuration as ML-Agents has it: an object, or its text as YAML or JSON."""
    config_name: Name | None = None
    """Name of a stored configuration."""
    config_version: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """The newest one by default."""
    overrides: JsonObject = Field(default={})
    """Changes to the configuration by dotted path, for all trials."""
    validate_only: bool = False
    """Only check, and answer the experiment without creating it."""

    @model_validator(mode="after")
    def _one_config(self) -> Self:
        if (self.config is None) == (self.config_name is None):
            raise ValueError("give either config or config_name")
        return self

    @property
    def spec(self) -> ExperimentSpec:
        """What the experiment stores of it."""
        return ExperimentSpec.model_validate(self.model_dump(include=set(ExperimentSpec.model_fields)))


class ExperimentUpdate(Write):
    """Changes of an experiment. Fields that are not given stay."""

    description: Text | None = None
    budget: Budget | None = None
    """In place of the former one, as a whole."""
    parallelism: int | None = Field(default=None, ge=1, le=1000)
    objective: Objective | None = None
    """While no trial has a value."""


class ExperimentRetry(Write):
    """Trials that are tried again."""

    trials: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] | None = Field(default=None, min_length=1, max_length=1000)
    """Their numbers. Default: all that are STOPPED."""


def read_spec(spec: Mapping[str, object]) -> ExperimentSpec:
    """Read a stored spec."""
    return ExperimentSpec.model_validate(spec)
