"""Commands of users on experiments. One object per request, in its transaction."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ludus.config.assessment import EvaluateSettings, MatchSettings
from ludus.config.problems import join_path, split_path
from ludus.config.run import RunConfig
from ludus.schemas.experiments import ExperimentState, TrialState
from ludus.schemas.states import RunKind, RunState
from ludus.validation import in_words, place
from server.config.document import located, parse_document
from server.config.resolution import apply_overrides
from server.kit.db.database import Session
from server.kit.db.texts import JsonObject
from server.kit.errors import InvalidConfig, InvalidEdit, Problem, RunEnded
from server.kit.states import TERMINAL
from server.kit.wake_up import Wakes
from server.lifecycle.experiments.models import Experiment, TrialRun
from server.lifecycle.experiments.refs import ExperimentEnded, ExperimentNotEnded, NothingToRetry
from server.lifecycle.experiments.repository import ExperimentRepository
from server.lifecycle.experiments.requests import (
    ExperimentCreate,
    ExperimentSpec,
    ExperimentUpdate,
    Objective,
    Parameter,
    read_spec,
)
from server.lifecycle.preparation import prepare
from server.lifecycle.service import RunEnding, RunService
from server.runs.repository import RunRepository
from server.runs.stored_configs.repository import ConfigRepository

TRIED = 20
"""Values of a key that are tried when an experiment is created; a trial whose configuration is refused fails alone."""
_OF_TWO_KEYS = {"contradiction"}
"""Codes of problems that may go with another key that varies, too."""


@dataclass(frozen=True)
class NewExperiment:
    """An experiment to be created: checked."""

    name: str
    description: str
    spec: JsonObject
    config: JsonObject
    """The document, with the request's overrides."""


def check_experiment(session: Session, wanted: ExperimentCreate) -> NewExperiment:
    """Check a request: its configuration, the sampler, and both ends of each key that varies.

    Raises InvalidConfig, ConfigNotFound, SamplerFailed.
    """
    with located(wanted.config, wanted.overrides):
        prepared = prepare(
            session, wanted.config, name=wanted.config_name, version=wanted.config_version, overrides=wanted.overrides
        )
    if prepared.config.kind not in {RunKind.TRAIN, RunKind.CLONE}:
        message = f"the configuration is one of a {prepared.config.kind} run; an experiment trains"
        raise InvalidConfig([Problem("config", "contradiction", message)])
    spec = wanted.spec
    completed: JsonObject = {} if spec.parameters else {"parameters": _usual_parameters(prepared.config)}
    if spec.seed is None:
        completed["seed"] = secrets.randbelow(2**31 - 1001)
    if spec.early_stopping is not None:
        completed["early_stopping"] = spec.early_stopping.completed(prepared.config.max_steps or 1).model_dump()
    try:
        spec = ExperimentSpec.model_validate(spec.model_dump() | completed)
    except ValidationError as error:
        raise InvalidConfig(list(_mistakes(error))) from error
    source = wanted.config
    if prepared.name is not None:
        source = ConfigRepository(session).get_or_raise(prepared.name, prepared.version).source
    assert source is not None
    document = apply_overrides(parse_document(source), wanted.overrides)
    problems = [
        problem
        for path, parameter in spec.parameters.items()
        for problem in _refusals(session, document, path, parameter)
    ]
    if spec.population is not None:
        for path_of, section in prepared.config.trainers().items():
            if section.checkpoint_interval > spec.population.interval:
                message = (
                    f"is {spec.population.interval}, below {join_path((*path_of, 'checkpoint_interval'))}, "
                    f"{section.checkpoint_interval}: copies would begin far back; lower the latter"
                )
                problems.append(Problem("population.interval", "contradiction", message))
    if problems:
        raise InvalidConfig(problems)
    _check_objective(session, spec.objective)
    from server.lifecycle.experiments.sampling import try_sampler  # noqa: PLC0415  # Optuna: few processes need it

    try_sampler(spec)
    return NewExperiment(wanted.name, wanted.description, spec.model_dump(mode="json"), document)


def _mistakes(error: ValidationError) -> Iterator[Problem]:
    for mistake in error.errors():
        yield Problem(".".join(place(mistake["loc"])), "contradiction", in_words(mistake))


def _check_objective(session: Session, objective: Objective) -> None:
    """Check the section of the runs that evaluate, before the first run has trained. Raises InvalidConfig."""
    if objective.assessment is None:
        return
    section, key, content = objective.assessment
    settings = EvaluateSettings if section == "evaluate" else MatchSettings
    named = {"champion": f"ckpt_{'1' * 26}"} if "champion" in content else {}  # it may be named by an alias
    try:
        settings.model_validate({"behavior": "any", **content, **named, key: f"ckpt_{'0' * 26}"})
    except ValidationError as error:
        problems = [(".".join(place(mistake["loc"])), in_words(mistake)) for mistake in error.errors()]
        raise InvalidConfig(
            [Problem(f"objective.{section}.{at}", "invalid_value", why) for at, why in problems]
        ) from error
    if "champion" in content:
        try:
            prepare(session, {"evaluate": {"checkpoint": content["champion"], "episodes": 1}})
        except InvalidConfig as error:
            message = error.problems[0].message
            raise InvalidConfig([Problem("objective.match.champion", "not_found", message)]) from error


def _usual_parameters(config: RunConfig) -> Mapping[str, Mapping[str, object]]:
    """Return what is worth varying of the trainer of each behavior, widened to the configuration's own values.

    A key without a value, as one of a reward signal that the configuration does not have, is left out.
    """
    parameters = {}
    for path, section in config.trainers().items():
        if path[0] != "behaviors" and config.behaviors:
            continue
        own = section.model_dump(mode="json")
        for key, parameter in section.tuning.items():
            value: Any = own
            for part in split_path(key):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                parameters[join_path((*path, *split_path(key)))] = _widened(parameter, value)
    return parameters


def _widened(parameter: Mapping[str, Any], value: Any) -> Mapping[str, object]:
    if "values" in parameter:
        return {**parameter, "values": sorted({*parameter["values"], value})}
    if parameter.get("scale") == "log" and value <= 0:
        return parameter
    return {**parameter, "min": min(parameter["min"], value), "max": max(parameter["max"], value)}


def _refusals(session: Session, document: JsonObject, path: str, parameter: Parameter) -> Iterator[Problem]:
    """Yield the first reason for which the configuration does not take a key, or a value of it."""
    try:
        split_path(path)
    except ValueError as error:
        yield Problem(f"parameters.{path}", "unknown_key", str(error))
        return
    for value in parameter.extremes[:TRIED]:
        try:
            prepare(session, document, overrides={path: value})
        except InvalidConfig as error:
            own = [problem for problem in error.problems if problem.code not in _OF_TWO_KEYS]
            if own:
                place = "" if own[0].path == path else f"{own[0].path}: "
                yield Problem(f"parameters.{path}", own[0].code, f"with {value!r}: {place}{own[0].message}")
                return


class ExperimentService:
    """Commands on experiments. The session's owner commits; the controller goes on with what they leave."""

    def __init__(self, session: Session, wake_up: Wakes) -> None:
        self._session = session
        self._experiments = ExperimentRepository(session)
        self._runs = RunService(session, wake_up)

    def create(self, new: NewExperiment, token_id: str) -> Experiment:
        """Create an experiment; the controller begins its trials. Raises ExperimentExists."""
        return self._experiments.insert(new.name, new.description, new.spec, new.config, token_id)

    def update(self, experiment: str, changes: ExperimentUpdate) -> Experiment:
        """Change the budget, the parallelism, the description; the objective while no trial has a value
        (its behavior also later, where none is named). Evaluations that are under way are done anew by the objective.

        One that had used up its budget goes on if it has more now.
        Raises ExperimentNotFound, NameAmbiguous, InvalidEdit.
        """
        row = self._experiments.lock(experiment)
        given = changes.model_dump(exclude_unset=True, exclude={"description"})
        try:
            spec = ExperimentSpec.model_validate(row.spec | given)
        except ValidationError as error:
            raise InvalidEdit(list(_mistakes(error))) from error
        if changes.objective is not None:
            self._change_objective(row, spec.objective)
        row.spec = spec.model_dump(mode="json")
        row.description = row.description if changes.description is None else changes.description
        row.revision += 1
        if row.state == ExperimentState.FINISHED and {"budget"} & given.keys():
            self._experiments.move(row, ExperimentState.RUNNING)
        return row

    def _change_objective(self, experiment: Experiment, wanted: Objective) -> None:
        """Check a new objective, and end the evaluations by the former one. Raises InvalidEdit."""
        present = read_spec(experiment.spec).objective
        only_names = present.behavior is None and present.model_copy(update={"behavior": wanted.behavior}) == wanted
        if wanted == present or only_names:
            return
        if self._experiments.has_values(experiment.id):
            message = "cannot change: trials have values by the present one; begin another experiment"
            raise InvalidEdit([Problem("objective", "immutable", message)])
        try:
            _check_objective(self._session, wanted)
        except InvalidConfig as error:
            raise InvalidEdit(error.problems) from error
        for trial_run in self._experiments.open_runs(experiment.id):
            if trial_run.assessment_id is not None:
                if trial_run.assessment_id in self._experiments.present([trial_run.assessment_id]):
                    self._runs.stop(trial_run.assessment_id)
                trial_run.assessment_id = None

    def pause(self, experiment: str) -> Experiment:
        """Begin no more runs, and pause those that train. Raises ExperimentNotFound, NameAmbiguous, ExperimentEnded."""
        row = self._experiments.lock(experiment)
        if row.state == ExperimentState.FINISHED:
            raise ExperimentEnded(row.id, row.state)
        if row.state != ExperimentState.PAUSED:
            pause_runs(self._experiments, self._runs, row)
            self._experiments.move(row, ExperimentState.PAUSED, "Paused by a user.")
        return row

    def resume(self, experiment: str) -> Experiment:
        """Go on with an experiment: one that was paused, failed, was stopped or has more budget now.

        The controller resumes its runs, those too that are still about to pause.
        Raises ExperimentNotFound, NameAmbiguous.
        """
        row = self._experiments.lock(experiment)
        if row.state != ExperimentState.RUNNING:
            self._experiments.move(row, ExperimentState.RUNNING)
        return row

    def try_again(self, experiment: str, numbers: Sequence[int] | None) -> Experiment:
        """Try trials again, by default all that were stopped, with new runs from the beginning.

        Seeds that have a value keep it, and what was trained to its end is evaluated again. An experiment that has
        ended goes on. Raises ExperimentNotFound, NameAmbiguous, TrialNotFound, NothingToRetry.
        """
        row = self._experiments.lock(experiment)
        if read_spec(row.spec).population is not None:
            raise NothingToRetry(f"Experiment {row.id} has a population, which replaces its members by itself")
        if numbers is None:
            trials = self._experiments.trials(row.id, TrialState.STOPPED)
        else:
            trials = [self._experiments.trial(row.id, number) for number in sorted({*numbers})]
        if not trials:
            raise NothingToRetry(f"No trial of experiment {row.id} was stopped")
        runs = self._experiments.runs_of(row.id, [trial.number for trial in trials])
        for trial in trials:
            if trial.state not in {TrialState.STOPPED, TrialState.FAILED}:
                raise NothingToRetry(f"Trial {trial.number} of experiment {row.id} is {trial.state}")
            trial.state, trial.detail, trial.finished_at = TrialState.RUNNING, "", None
            for trial_run in runs[trial.number]:
                if trial_run.value is None and trial_run.assessment_id is not None:
                    trial_run.assessment_id, trial_run.is_open = None, True
                elif trial_run.value is None:
                    self._experiments.set_aside(trial_run)
        if row.state in {ExperimentState.FINISHED, ExperimentState.FAILED}:
            self._experiments.move(row, ExperimentState.RUNNING)
        else:
            row.revision += 1
        return row

    def stop(self, experiment: str) -> Experiment:
        """End an experiment and stop its runs; one that has ended stays as it is.

        Raises ExperimentNotFound, NameAmbiguous.
        """
        row = self._experiments.lock(experiment)
        if row.state != ExperimentState.FINISHED:
            finish(self._session, self._runs, row, "Stopped by a user.")
        return row

    def delete(self, experiment: str) -> None:
        """Forget an experiment. Its runs stay; they are tagged with its id, so that the name may be used again.

        Raises ExperimentNotFound, NameAmbiguous, ExperimentNotEnded.
        """
        row = self._experiments.lock(experiment)
        if row.state != ExperimentState.FINISHED:
            raise ExperimentNotEnded(row.id, row.state)
        runs = RunRepository(self._session)
        runs.rename_tag(self._experiments.run_ids(row.id), f"experiment:{row.name}", f"experiment:{row.id}")
        self._experiments.delete(row)


def pause_runs(experiments: ExperimentRepository, runs: RunService, experiment: Experiment) -> None:
    """Pause the runs of a locked experiment that has to wait; they are resumed once it goes on."""
    open_runs = experiments.open_runs(experiment.id)
    present = experiments.present([run.live_id for run in open_runs])
    for trial_run in open_runs:
        run = present.get(trial_run.live_id)
        if run is not None and run.state not in {*TERMINAL, RunState.PAUSED}:
            with suppress(RunEnding, RunEnded):  # it is about to end anyway
                runs.pause(run.id)
                trial_run.is_paused = True


def close(experiments: ExperimentRepository, runs: RunService, trial_run: TrialRun) -> None:
    """Have a run of a trial count no more; stop it if it has not ended."""
    present = experiments.present([trial_run.run_id, trial_run.live_id])
    live = present.get(trial_run.live_id)
    if live is not None and live.state not in TERMINAL:
        runs.stop(live.id)
    if (run := present.get(trial_run.run_id)) is not None:
        trial_run.steps, trial_run.seconds = run.step, experiments.seconds(trial_run)
    trial_run.is_open = False


def finish(session: Session, runs: RunService, experiment: Experiment, why: str) -> None:
    """End a locked experiment: its runs are stopped, and trials that are under way get no value."""
    experiments = ExperimentRepository(session)
    for trial_run in experiments.open_runs(experiment.id):
        close(experiments, runs, trial_run)
    clock = experiments.clock()
    for trial in experiments.trials(experiment.id, TrialState.RUNNING):
        trial.state, trial.detail, trial.finished_at = TrialState.STOPPED, why, clock
    session.flush()
    stopped = experiments.counts(experiment.id).get(TrialState.STOPPED, 0)
    if stopped:
        why += " 1 trial was" if stopped == 1 else f" {stopped} trials were"
        why += f" stopped before {'its' if stopped == 1 else 'their'} end"
        if read_spec(experiment.spec).population is None:
            why += f"; `ludus experiment retry {experiment.name}` tries {'it' if stopped == 1 else 'them'} again"
        why += "."
    experiments.move(experiment, ExperimentState.FINISHED, why)
