"""Experiments over HTTP: create, read, change, pause, resume, stop, delete; and their trials."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Response

from ludus import schemas
from ludus.schemas.experiments import LEAST_TRIALS, ExperimentState, TrialState
from server.config.resolution import apply_overrides
from server.kit.db.database import Session
from server.kit.errors import ConfigNotFound, InvalidConfig, InvalidEdit, NameAmbiguous
from server.kit.http.auth import AuthDep
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import deleted, problems
from server.kit.http.fields import Name
from server.kit.http.idempotency import BODY_PROBLEMS, COMMAND_PROBLEMS, Answer, json_command, merge_patch
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.resources import resource
from server.kit.http.services import CommandDep, DatabaseDep, EditDep, ServicesDep
from server.kit.listing import ListQuery, Page
from server.lifecycle.experiments.models import Experiment, Trial
from server.lifecycle.experiments.refs import (
    ExperimentEnded,
    ExperimentExists,
    ExperimentNotEnded,
    ExperimentNotFound,
    NothingToRetry,
    SamplerFailed,
    TrialNotFound,
)
from server.lifecycle.experiments.repository import ExperimentRepository
from server.lifecycle.experiments.requests import ExperimentCreate, ExperimentRetry, ExperimentUpdate, read_spec
from server.lifecycle.experiments.service import ExperimentService, check_experiment

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])

EXPERIMENTS = ListForm(
    "experiments",
    schemas.Experiment,
    ExperimentRepository.COLUMNS,
    orders=("created_at", "name"),
    choices={"state": ExperimentState},
)
TRIALS = ListForm(
    "trials",
    schemas.Trial,
    ExperimentRepository.TRIAL_COLUMNS,
    orders=("number", "value"),
    ascending=True,
    choices={"state": TrialState},
)
ExperimentKey = Annotated[Name, Path(description="An experiment's id or name.")]
Number = Annotated[int, Path(ge=0, le=2**31 - 1, description="A trial's number.")]


@router.get("", response_model=EXPERIMENTS.page(), responses=problems(*LIST_PROBLEMS))
def list_experiments(listing: ListingDep) -> dict[str, object]:
    """List experiments, newest first."""

    def fetch(session: Session, query: ListQuery) -> Page[schemas.Experiment]:
        return ExperimentRepository(session).list(query).map(lambda row: _experiment(session, row))

    return listing.answer(EXPERIMENTS, fetch)


@router.post(
    "",
    status_code=201,
    response_model=schemas.Experiment,
    responses={
        200: {
            "model": schemas.PlannedExperiment,
            "description": "With `validate_only`: the experiment that would be created.",
        },
        **problems(InvalidConfig, ConfigNotFound, SamplerFailed, ExperimentExists, *BODY_PROBLEMS),
    },
    openapi_extra=declare_json(ExperimentCreate),
)
def create_experiment(
    body: BodyDep, command: CommandDep, database: DatabaseDep, services: ServicesDep, auth: AuthDep
) -> Response:
    """Create an experiment. The controller begins its trials, each of which is one run per seed.

    Runs of an experiment are tagged `experiment:NAME` and `trial:NUMBER`; simulators join them as they join any run.
    """
    wanted = body.read(ExperimentCreate, {})
    with database.read() as session:  # each end of each key is tried, which takes a while
        new = check_experiment(session, wanted)
    if wanted.validate_only:
        return command.preview(resource(schemas.PlannedExperiment, new))

    def create(session: Session) -> Answer:
        row = ExperimentService(session, services.wake_up).create(new, auth.principal.token_id or "")
        return Answer(201, _experiment(session, row), f"/v1/experiments/{row.id}")

    return command.run(create)


@router.get("/{experiment:name}", responses=problems(ExperimentNotFound, NameAmbiguous))
def get_experiment(experiment: ExperimentKey, database: DatabaseDep) -> schemas.Experiment:
    """Return one experiment, with its best trial so far."""
    with database.read() as session:
        return _experiment(session, ExperimentRepository(session).get(experiment))


@router.patch(
    "/{experiment:name}",
    response_model=schemas.Experiment,
    **merge_patch(ExperimentUpdate, ExperimentNotFound, NameAmbiguous, InvalidEdit),
)
def update_experiment(experiment: ExperimentKey, body: BodyDep, command: EditDep, services: ServicesDep) -> Response:
    """Change the budget, the parallelism, the description; the objective while no trial has a value.

    An experiment that had used up its budget goes on with more.
    """
    wanted = body.read(ExperimentUpdate, {})

    def update(session: Session) -> Answer:
        command.expects(lambda: _experiment(session, ExperimentRepository(session).lock(experiment)))
        return _changed(session, ExperimentService(session, services.wake_up).update(experiment, wanted))

    return command.run(update)


@router.post(
    "/{experiment:name}:pause",
    response_model=schemas.Experiment,
    responses=problems(ExperimentNotFound, NameAmbiguous, ExperimentEnded, *COMMAND_PROBLEMS),
)
def pause_experiment(experiment: ExperimentKey, command: CommandDep, services: ServicesDep) -> Response:
    """Begin no more runs, and pause those that train."""
    return command.run(
        lambda session: _changed(session, ExperimentService(session, services.wake_up).pause(experiment))
    )


@router.post(
    "/{experiment:name}:resume",
    response_model=schemas.Experiment,
    responses=problems(ExperimentNotFound, NameAmbiguous, *COMMAND_PROBLEMS),
)
def resume_experiment(experiment: ExperimentKey, command: CommandDep, services: ServicesDep) -> Response:
    """Go on with an experiment that was paused or stopped, or has failed; its paused runs go on, too."""
    return command.run(
        lambda session: _changed(session, ExperimentService(session, services.wake_up).resume(experiment))
    )


@router.post(
    "/{experiment:name}:stop",
    response_model=schemas.Experiment,
    responses=problems(ExperimentNotFound, NameAmbiguous, *COMMAND_PROBLEMS),
)
def stop_experiment(experiment: ExperimentKey, command: CommandDep, services: ServicesDep) -> Response:
    """End an experiment and stop its runs, each with a checkpoint. One that has ended stays as it is."""
    return command.run(lambda session: _changed(session, ExperimentService(session, services.wake_up).stop(experiment)))


@router.post(
    "/{experiment:name}:retry",
    response_model=schemas.Experiment,
    **json_command(ExperimentRetry, ExperimentNotFound, NameAmbiguous, TrialNotFound, NothingToRetry, required=False),
)
def retry_experiment(experiment: ExperimentKey, body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Try trials again that were stopped or have failed, from the beginning; the experiment goes on if it has ended."""
    numbers = body.read(ExperimentRetry, {}).trials if body.content else None
    return command.run(
        lambda session: _changed(session, ExperimentService(session, services.wake_up).try_again(experiment, numbers))
    )


@router.delete(
    "/{experiment:name}", status_code=204, responses=deleted(ExperimentNotFound, NameAmbiguous, ExperimentNotEnded)
)
def delete_experiment(experiment: ExperimentKey, services: ServicesDep) -> None:
    """Delete an experiment that has ended, with its trials. Their runs stay, tagged `experiment:ID` from then on."""
    with services.database.write() as session:
        ExperimentService(session, services.wake_up).delete(experiment)


@router.get(
    "/{experiment:name}/trials",
    response_model=TRIALS.page(),
    responses=problems(ExperimentNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def list_trials(experiment: ExperimentKey, listing: ListingDep) -> dict[str, object]:
    """List an experiment's trials by number, or by value: `order_by=value desc`."""

    def fetch(session: Session, query: ListQuery) -> Page[schemas.Trial]:
        experiments = ExperimentRepository(session)
        row = experiments.get(experiment)
        page = experiments.trial_page(row.id, query)
        return Page(tuple(_trials(session, row, page.items)), page.next)

    return listing.answer(TRIALS, fetch)


@router.get("/{experiment:name}/importance", responses=problems(ExperimentNotFound, NameAmbiguous, SamplerFailed))
def get_importance(experiment: ExperimentKey, database: DatabaseDep) -> schemas.Importance:
    """Return how much of the differences between trials each key explains (PED-ANOVA)."""
    with database.read() as session:
        experiments = ExperimentRepository(session)
        row = experiments.get(experiment)
        trials = experiments.trials(row.id)
        spec = read_spec(row.spec)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    shares: dict[str, float] = {}
    if len(complete) >= LEAST_TRIALS:
        from server.lifecycle.experiments.sampling import Study  # noqa: PLC0415  # Optuna: few processes need it

        shares = Study(spec, 0, complete).importance()
    return schemas.Importance(shares=shares, trials=len(complete))


@router.get(
    "/{experiment:name}/trials/{number}/config", responses=problems(ExperimentNotFound, NameAmbiguous, TrialNotFound)
)
def get_trial_config(experiment: ExperimentKey, number: Number, database: DatabaseDep) -> schemas.TrialConfig:
    """Return the configuration of a trial: the experiment's with the trial's values, without a seed."""
    with database.read() as session:
        experiments = ExperimentRepository(session)
        row = experiments.get(experiment)
        trial = experiments.trial(row.id, number)
        return schemas.TrialConfig(number=number, config=apply_overrides(row.config, trial.parameters))


def _changed(session: Session, row: Experiment) -> Answer:
    return Answer(200, _experiment(session, row))


def _experiment(session: Session, row: Experiment) -> schemas.Experiment:
    session.flush()
    experiments = ExperimentRepository(session)
    best = experiments.best(row)
    shown = None if best is None else next(_trials(session, row, [best]))
    return resource(schemas.Experiment, row, trials=experiments.counts(row.id), used=experiments.used(row), best=shown)


def _trials(session: Session, row: Experiment, trials: Sequence[Trial]) -> Iterator[schemas.Trial]:
    experiments = ExperimentRepository(session)
    runs = experiments.runs_of(row.id, [trial.number for trial in trials])
    present = experiments.present(sorted({run.live_id for of_trial in runs.values() for run in of_trial}))
    for trial in trials:
        shown = [
            resource(schemas.TrialRun, run, state=None if run.live_id not in present else present[run.live_id].state)
            for run in runs[trial.number]
        ]
        yield resource(schemas.Trial, trial, runs=shown, parent=trial.attributes.get("parent"))
