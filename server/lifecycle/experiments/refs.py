"""Errors of experiments, and what samplers say, as values: without Optuna, which takes its time to load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.kit.db.texts import JsonObject
from server.kit.errors import Conflict, Invalid, NotFound


class ExperimentNotFound(NotFound, code="experiment_not_found"):
    """No experiment has this id or name."""

    experiment: str
    sentence = "There is no experiment {experiment!r}. List the experiments to see what there is."


class TrialNotFound(NotFound, code="trial_not_found"):
    """The experiment has no such trial."""

    experiment_id: str
    number: int
    sentence = "Experiment {experiment_id} has no trial {number}. List its trials."


class ExperimentExists(Conflict, code="experiment_exists"):
    """An experiment cannot be created because another one has its name."""

    name: str
    sentence = "There is an experiment {name!r} already. Go on with it (`:resume`, PATCH), or choose another name."


class ExperimentNotEnded(Conflict, code="experiment_not_ended"):
    """An experiment cannot be deleted while it has runs that have not ended."""

    experiment_id: str
    state: str
    sentence = "Experiment {experiment_id} is {state}. Stop it (`ludus experiment stop`), and delete it then."


class ExperimentEnded(Conflict, code="experiment_ended"):
    """A finished experiment cannot be paused."""

    experiment_id: str
    state: str
    sentence = "Experiment {experiment_id} is {state}: there is nothing to pause."


class NothingToRetry(Conflict, code="nothing_to_retry"):
    """No trial was chosen that can be tried again."""

    why: str
    sentence = "{why}. Only trials that are STOPPED or FAILED are tried again, and none of a population."


class SamplerFailed(Invalid, code="sampler_failed"):
    """The sampler, or the rule of early stopping, raised an error."""

    what: str
    error: str
    sentence = "{what} failed: {error}."


@dataclass(frozen=True)
class Proposal:
    """A setting that a sampler proposes."""

    number: int
    parameters: JsonObject
    attributes: JsonObject


@dataclass(frozen=True)
class Reported:
    """The decision of early stopping on new values of a trial."""

    looked_at: Sequence[tuple[int, float]]
    ends: bool
    """Whether the trial ends with the last of them."""
    attributes: JsonObject


class Advice(Protocol):
    """What the trials so far say about the next one, and about those that run."""

    def ask(self, baseline: JsonObject | None) -> Proposal:
        """Return the next setting: `baseline`, as far as its values lie in the space, or the sampler's.

        Raises SamplerFailed.
        """
        ...

    def report(self, number: int, points: Sequence[tuple[int, float]]) -> Reported:
        """Report new values of a running trial, one (step, value) after the other. Raises SamplerFailed."""
        ...
