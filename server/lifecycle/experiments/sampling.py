"""Settings and early stopping by Optuna, which keeps nothing: its study is built from stored trials each time.

Optuna owns the arithmetic, the database owns the state. A trial that runs is in the study with what it has reported, so
samplers avoid it and rules of early stopping compare with it, as they would in Optuna's own storage.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial as OptunaTrial
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from ludus.schemas.experiments import TrialState
from server.kit.db.texts import JsonObject
from server.lifecycle.experiments.models import Trial
from server.lifecycle.experiments.refs import Proposal, Reported, SamplerFailed
from server.lifecycle.experiments.requests import EarlyStopping, ExperimentSpec, Parameter

_STATES: Final[Mapping[TrialState, OptunaState]] = {
    TrialState.RUNNING: OptunaState.RUNNING,
    TrialState.COMPLETE: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.STOPPED: OptunaState.FAIL,
    TrialState.FAILED: OptunaState.FAIL,
}
optuna.logging.set_verbosity(optuna.logging.ERROR)


class Study:
    """What the trials so far say about the next one, and about those that run."""

    def __init__(self, spec: ExperimentSpec, seed: int, trials: Sequence[Trial]) -> None:
        """`trials`: all of them, by number. Raises SamplerFailed."""
        self._spec = spec
        self._distributions = {path: distribution(parameter) for path, parameter in spec.parameters.items()}
        with _named(f"The sampler {spec.sampler}"):
            sampler = _sampler(spec, seed, len(trials))
            self._study = optuna.create_study(
                study_name=f"ludus-{seed}",  # Hyperband assigns trials to its ladders by this name
                sampler=sampler,
                pruner=None if spec.early_stopping is None else _pruner(spec.early_stopping),
                direction="maximize" if spec.objective.mode == "max" else "minimize",
            )
            self._study.add_trials([self._stored(trial) for trial in trials])

    def _stored(self, trial: Trial) -> optuna.trial.FrozenTrial:
        state = TrialState(trial.state)
        reports = {int(step): float(value) for step, value in trial.reports}
        value = trial.value
        if state is TrialState.PRUNED:  # samplers learn from how far it came
            value = reports[max(reports)] if reports else None
        return create_trial(
            state=_STATES[state],
            params=dict(trial.parameters),
            distributions=self._distributions,
            value=value if state in {TrialState.COMPLETE, TrialState.PRUNED} else None,
            intermediate_values=reports,
            system_attrs=dict(trial.attributes),
        )

    def ask(self, baseline: JsonObject | None) -> Proposal:
        """Return the next setting: `baseline`, as far as its values lie in the space, or the sampler's.

        Raises SamplerFailed.
        """
        with _named(f"The sampler {self._spec.sampler}"):
            if baseline is not None:
                within = {path: value for path, value in baseline.items() if self._spec.parameters[path].holds(value)}
                if within:
                    self._study.enqueue_trial(within)
            trial = self._study.ask(self._distributions)
            return Proposal(trial.number, dict(trial.params), self._attributes(trial.number))

    def report(self, number: int, points: Sequence[tuple[int, float]]) -> Reported:
        """Report new values of a running trial, one (step, value) after the other. Raises SamplerFailed."""
        assert self._spec.early_stopping is not None
        looked_at: list[tuple[int, float]] = []
        with _named(f"Early stopping ({self._spec.early_stopping.type})"):
            trial = OptunaTrial(self._study, number)  # the study is new: ids count like numbers
            for step, value in points:
                trial.report(value, step)
                looked_at.append((step, value))
                if trial.should_prune():
                    return Reported(looked_at, ends=True, attributes=self._attributes(number))
            return Reported(looked_at, ends=False, attributes=self._attributes(number))

    def importance(self) -> dict[str, float]:
        """Return the share of each key in the differences between complete trials, the highest first.

        PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255), which needs no model of the values. Raises SamplerFailed.
        """
        with _named("The importance of the keys"):
            return optuna.importance.get_param_importances(
                self._study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
            )

    def _attributes(self, number: int) -> JsonObject:
        attributes = self._study.get_trials(deepcopy=False)[number].system_attrs
        return {name: value for name, value in attributes.items() if name != "search_space"}  # the spec has it


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return the distribution of a key's values. Raises ValueError."""
    if parameter.values is not None:
        return CategoricalDistribution(parameter.values)
    assert parameter.min is not None
    assert parameter.max is not None
    is_log = parameter.scale == "log"
    if parameter.is_whole:
        return IntDistribution(int(parameter.min), int(parameter.max), log=is_log, step=int(parameter.step or 1))
    return FloatDistribution(float(parameter.min), float(parameter.max), log=is_log, step=parameter.step)


def try_sampler(spec: ExperimentSpec) -> None:
    """Draw a few settings, as far as the sampler's own arithmetic. Raises SamplerFailed where it lacks a package."""
    trials: list[Trial] = []
    for number in range(1 if spec.sampler == "grid" else 4):
        proposal = Study(spec, 0, trials).ask(None)
        complete = Trial(number=number, state=TrialState.COMPLETE, parameters=proposal.parameters, value=float(number))
        complete.reports, complete.attributes = [], proposal.attributes
        trials.append(complete)


def _sampler(spec: ExperimentSpec, seed: int, tried: int) -> optuna.samplers.BaseSampler:
    """Return a sampler whose draws depend on the experiment's seed and on the number of trials before them."""
    match spec.sampler:
        case "tpe":
            return optuna.samplers.TPESampler(seed=seed + tried, constant_liar=True)
        case "random":
            return optuna.samplers.RandomSampler(seed=seed + tried)
        case "grid":  # the order is drawn once; a trial's number is its place
            return optuna.samplers.GridSampler(
                {path: parameter.grid for path, parameter in spec.parameters.items()}, seed=seed
            )
        case "qmc":
            return optuna.samplers.QMCSampler(seed=seed)
        case "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed + tried)
        case "gp":
            return optuna.samplers.GPSampler(seed=seed + tried)


def _pruner(rule: EarlyStopping) -> optuna.pruners.BasePruner:
    assert rule.min_steps is not None
    assert rule.max_steps is not None
    match rule.type:
        case "asha":
            return optuna.pruners.SuccessiveHalvingPruner(rule.min_steps, rule.reduction_factor)
        case "hyperband":
            return optuna.pruners.HyperbandPruner(rule.min_steps, rule.max_steps, rule.reduction_factor)
        case "median":
            return optuna.pruners.MedianPruner(n_warmup_steps=rule.min_steps)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Say in an error of Optuna what failed, and drop its warnings, which are for who calls it from a program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # a sampler's own, whatever it is: it must end this experiment alone
        lines = str(error).strip().splitlines()
        raise SamplerFailed(what, f"{type(error).__name__}: {lines[-1] if lines else 'no message'}") from error
