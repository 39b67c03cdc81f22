"""Commands of users on experiments. One object per request, in its transaction."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from ludus.config.problems import join_path, split_path
from ludus.config.run import RunConfig
from ludus.schemas.experiments import ExperimentState, TrialState
from ludus.schemas.states import RunKind, RunState
from ludus.validation import in_words, place
from server.config.document import located, parse_document
from server.config.resolution import apply_overrides
from server.kit.db.database import Session
from server.kit.db.texts import JsonObject
from server.kit.errors import InvalidConfig, InvalidEdit, Problem
from server.kit.states import TERMINAL
from server.kit.wake_up import Wakes
from server.lifecycle.experiments.models import Experiment, TrialRun
from server.lifecycle.experiments.refs import ExperimentEnded, ExperimentNotEnded
from server.lifecycle.experiments.repository import ExperimentRepository
from server.lifecycle.experiments.requests import ExperimentCreate, ExperimentSpec, ExperimentUpdate, Parameter
from server.lifecycle.preparation import prepare
from server.lifecycle.service import RunEnding, RunService
from server.runs.models import Run
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
    spec = ExperimentSpec.model_validate(spec.model_dump() | completed)
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
    if problems:
        raise InvalidConfig(problems)
    from server.lifecycle.experiments.sampling import try_sampler  # noqa: PLC0415  # Optuna: few processes need it

    try_sampler(spec)
    return NewExperiment(wanted.name, wanted.description, spec.model_dump(mode="json"), document)


def _usual_parameters(config: RunConfig) -> Mapping[str, Mapping[str, object]]:
    """Return what is worth varying of the trainer of each behavior."""
    return {
        join_path((*path, *split_path(key))): parameter
        for path, section in config.trainers().items()
        for key, parameter in section.tuning.items()
        if path[0] == "behaviors" or not config.behaviors
    }


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
        """Change the budget, the parallelism, the description; the objective while no trial has a value.

        One that had used up its budget goes on if it has more now.
        Raises ExperimentNotFound, NameAmbiguous, InvalidEdit.
        """
        row = self._experiments.lock(experiment)
        given = changes.model_dump(exclude_unset=True, exclude={"description"})
        if "objective" in given and any(trial.value is not None for trial in self._experiments.trials(row.id)):
            message = "cannot change: trials have values by the present one; begin another experiment"
            raise InvalidEdit([Problem("objective", "immutable", message)])
        try:
            spec = ExperimentSpec.model_validate(row.spec | given)
        except ValidationError as error:
            mistakes = [(".".join(place(mistake["loc"])), in_words(mistake)) for mistake in error.errors()]
            raise InvalidEdit([Problem(path, "contradiction", words) for path, words in mistakes]) from error
        row.spec = spec.model_dump(mode="json")
        row.description = row.description if changes.description is None else changes.description
        row.revision += 1
        if row.state == ExperimentState.FINISHED and {"budget"} & given.keys():
            self._experiments.move(row, ExperimentState.RUNNING)
        return row

    def pause(self, experiment: str) -> Experiment:
        """Begin no more runs, and pause those that train. Raises ExperimentNotFound, NameAmbiguous, ExperimentEnded."""
        row = self._experiments.lock(experiment)
        if row.state == ExperimentState.FINISHED:
            raise ExperimentEnded(row.id, row.state)
        if row.state != ExperimentState.PAUSED:
            for run_id in self._live(row):
                with suppress(RunEnding):  # it is about to end anyway
                    self._runs.pause(run_id)
            self._experiments.move(row, ExperimentState.PAUSED, "Paused by a user.")
        return row

    def resume(self, experiment: str) -> Experiment:
        """Go on with an experiment and its runs: one that was paused, failed, was stopped or has more budget now.

        Raises ExperimentNotFound, NameAmbiguous.
        """
        row = self._experiments.lock(experiment)
        if row.state != ExperimentState.RUNNING:
            for run_id, run in self._experiments.present(self._live(row)).items():
                if run.state == RunState.PAUSED:
                    self._runs.resume(run_id)
            self._experiments.move(row, ExperimentState.RUNNING)
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
        """Forget an experiment; its runs stay. Raises ExperimentNotFound, NameAmbiguous, ExperimentNotEnded."""
        row = self._experiments.lock(experiment)
        if row.state != ExperimentState.FINISHED:
            raise ExperimentNotEnded(row.id, row.state)
        self._experiments.delete(row)

    def _live(self, row: Experiment) -> Sequence[str]:
        """Return the runs of an experiment that have not ended."""
        ids = [run.live_id for run in self._experiments.open_runs(row.id)]
        return [run_id for run_id, run in self._experiments.present(ids).items() if run.state not in TERMINAL]


def close(runs: RunService, trial_run: TrialRun, run: Run | None) -> None:
    """Have a run of a trial count no more; stop it if it has not ended."""
    if run is not None:
        if run.state not in TERMINAL:
            runs.stop(run.id)
        trial_run.steps = run.step
        if run.started_at is not None:
            trial_run.seconds = (run.finished_at or run.updated_at) - run.started_at
    trial_run.is_open = False


def finish(session: Session, runs: RunService, experiment: Experiment, why: str) -> None:
    """End a locked experiment: its runs are stopped, and trials that are under way get no value."""
    experiments = ExperimentRepository(session)
    open_runs = experiments.open_runs(experiment.id)
    present = experiments.present([run.live_id for run in open_runs])
    for trial_run in open_runs:
        close(runs, trial_run, present.get(trial_run.live_id))
    clock = experiments.clock()
    for trial in experiments.trials(experiment.id):
        if trial.state == TrialState.RUNNING:
            trial.state, trial.detail, trial.finished_at = TrialState.STOPPED, why, clock
    experiments.move(experiment, ExperimentState.FINISHED, why)
