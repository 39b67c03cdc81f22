"""Runs over HTTP: queue, read, wait, pause, resume, end, delete, compare."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, Self

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field, StringConstraints, model_validator

from ludus import schemas
from ludus.config.problems import join_path
from ludus.schemas import DifferingKey, RunComparison
from ludus.schemas.states import RunKind, RunState, StopReason
from ludus.validation import NO_NUL, Form
from server.checkpoints.repository import HAS_CHECKPOINTS, CheckpointRepository
from server.config.document import locate, located
from server.kit.db.database import Database, Session
from server.kit.db.texts import JsonObject
from server.kit.errors import (
    ConfigNotFound,
    InvalidConfig,
    InvalidEdit,
    InvalidQuery,
    Problem,
    RunEnded,
    RunNotFound,
    TooManyTags,
)
from server.kit.http.auth import AuthDep, named_in_query
from server.kit.http.bodies import EXAMPLE, BodyDep, declare_body
from server.kit.http.errors import TooManyWaiters, deleted, problems
from server.kit.http.fields import Document, Name, RunName, Tag, Write
from server.kit.http.idempotency import BODY_PROBLEMS, COMMAND_PROBLEMS, Answer, json_command, merge_patch
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.parameters import RunKey
from server.kit.http.resources import resource
from server.kit.http.services import CommandDep, EditDep, Services, ServicesDep, shared
from server.kit.listing import ListQuery, Order, Page
from server.lifecycle.blocked import BlockedRepository
from server.lifecycle.preparation import bind, prepare
from server.lifecycle.progress import ProgressRepository
from server.lifecycle.service import DeletionService, RunEnding, RunInUse, RunNotEnded, RunNotPaused, RunService
from server.metrics.points import ListedMetric
from server.metrics.repository import MetricRepository, values_by_run
from server.runs.amendments import AmendmentService, RunChanges, RunUpdate
from server.runs.models import Run
from server.runs.repository import METRIC, NewRun, RunRepository
from server.runs.waits import MAX_SECONDS, Waits, states_of


class RunCreate(Write):
    """A run to be queued. Its configuration is `config`, or a stored one, named by `config_name`."""

    config: Document | None = None
    """A configuration as ML-Agents has it (`behaviors: {Name: {trainer_type: ppo, ...}}`): an object, or its text as
    YAML or JSON.
    """
    config_name: Name | None = None
    """Name of a stored configuration."""
    config_version: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """The newest one by default."""
    overrides: JsonObject = Field(default={}, examples=[{"behaviors.CartPole.max_steps": 100000}])
    """Changes to the configuration by dotted path."""
    name: RunName | None = None
    """Called like its id by default."""
    tags: list[Tag] = Field(default=[], max_length=50)
    """For filters."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """Of a project's runs, those with a higher one are trained first."""
    owner: Annotated[str, StringConstraints(max_length=200), NO_NUL] = ""
    """A label: of the runs that one token created, those of the owner with fewer in training go first. Quotas count by
    project and token, not by owner.
    """
    kind: RunKind | None = None
    """Default: the kind that the configuration implies; another kind is refused."""
    validate_only: bool = False
    """Only check, and answer the run without queuing it."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.config is None) == (self.config_name is None):
            raise ValueError("give either config or config_name")
        if self.config_version is not None and self.config_name is None:
            raise ValueError("config_version needs config_name")
        return self


router = APIRouter(prefix="/v1/runs", tags=["runs"])

FILTERS = {"has_checkpoints": HAS_CHECKPOINTS}
RUNS = ListForm(
    name="runs",
    kind=schemas.RunListed,
    columns={**RunRepository.COLUMNS, **FILTERS},
    equality={"tags"},
    choices={"state": RunState, "kind": RunKind, "stop_reason": StopReason},
    orders=("created_at", "updated_at", "finished_at", "name", "state", "step", "priority", METRIC),
)


class ListedMetrics:
    """The metrics that a list of runs is asked for."""

    def __init__(
        self,
        metrics: Annotated[
            list[Annotated[str, StringConstraints(min_length=1, max_length=420), NO_NUL]] | None,
            Query(
                max_length=20,
                description="Numbers to show beside each run: `[BEHAVIOR:]KEY`, the newest value; with `@max` or "
                "`@min` the highest or lowest one.",
            ),
        ] = None,
    ) -> None:
        try:
            self.wanted = [ListedMetric.parse(text) for text in metrics or ()]
        except ValueError as error:
            raise InvalidQuery("metrics", str(error)) from error
        self.bound = self.wanted[0].text if self.wanted else ""
        """The text to which page tokens are bound."""

    def sorts(self, order: Order) -> ListedMetric | None:
        """Return the metric that sorts the list, if one does."""
        if order.field != METRIC:
            return None
        if not self.wanted:
            raise InvalidQuery("order_by", "metric stands for the first of the parameter metrics, which is missing")
        return self.wanted[0]


MetricsDep = Annotated[ListedMetrics, Depends()]
WaitsDep = Annotated[Waits, Depends(shared(Waits))]

_STATE = "|".join(["terminal", *RunState])


@router.post(
    "",
    status_code=201,
    response_model=schemas.Run,
    responses={
        200: {"model": schemas.PlannedRun, "description": "With `validate_only`: the run that would be queued."},
        **problems(InvalidConfig, ConfigNotFound, *BODY_PROBLEMS),
    },
    openapi_extra=declare_body(RunCreate, EXAMPLE),
)
def create_run(
    body: BodyDep,
    command: CommandDep,
    services: ServicesDep,
    auth: AuthDep,
    name: Annotated[Name | None, Query(description="Sets the body's field; for YAML bodies.")] = None,
    tags: Annotated[list[Tag] | None, Query(max_length=50, description="Sets the body's field; repeated.")] = None,
    validate_only: Annotated[bool | None, Query(description="Sets the body's field.")] = None,
) -> Response:
    """Queue a training run. The body is JSON, or the bare configuration as YAML."""
    request = body.read(RunCreate, {"name": name, "tags": tags, "validate_only": validate_only})
    prepared = _prepare(services.database, request)
    if request.validate_only:
        return command.preview(
            resource(
                schemas.PlannedRun,
                prepared,
                kind=prepared.config.kind,
                tags=sorted(set(prepared.tags)),
                config=prepared.config.model_dump(mode="json"),
                warnings=[resource(schemas.ConfigWarning, warning) for warning in prepared.warnings],
            )
        )

    def create(session: Session) -> Answer:
        with located(request.config, request.overrides):
            new = bind(session, replace(prepared, token_id=auth.principal.token_id or ""))
        run = RunService(session, services.wake_up).create(new)
        return Answer(201, _resource(session, run), f"/v1/runs/{run.id}")

    return command.run(create)


@router.get("", response_model=RUNS.page(), responses=problems(InvalidQuery, *LIST_PROBLEMS))
def list_runs(listing: ListingDep, metrics: MetricsDep, services: ServicesDep) -> dict[str, object]:
    """List runs, newest first. A filter's text that ends in `*` matches a prefix: `name = "nightly-*"`.

    `order_by=metric desc` sorts by the first of `metrics`; runs that have no such number come last then.
    """

    def fetch(session: Session, query: ListQuery) -> Page[schemas.RunListed]:
        metric = metrics.sorts(query.order)
        page = RunRepository(session).list(query, None if metric is None else values_by_run(metric), FILTERS)
        return Page(tuple(listed(session, services, page.items, metrics.wanted)), page.next)

    return listing.answer(RUNS, fetch, metrics.bound)


def _blocked(session: Session, services: Services) -> BlockedRepository:
    settings = services.settings
    return BlockedRepository(session, settings.worker.lease_seconds, settings.scheduling)


def listed(
    session: Session, services: Services, runs: Sequence[Run], metrics: Sequence[ListedMetric]
) -> Iterator[schemas.RunListed]:
    """Iterate over runs as lists show them: with what they wait for, their progress and the wanted metrics."""
    blocked = _blocked(session, services).of(runs)
    values = MetricRepository(session).listed([run.id for run in runs], metrics)
    progress = ProgressRepository(session).of(runs)
    for run in runs:
        numbers = {metric.text: values[run.id][metric] for metric in metrics}
        yield resource(schemas.RunListed, run, metrics=numbers, **vars(progress[run.id]), **vars(blocked[run.id]))


@router.get("/{run:name}", responses=problems(RunNotFound, TooManyWaiters))
def get_run(
    run: RunKey,
    services: ServicesDep,
    waits: WaitsDep,
    auth: AuthDep,
    wait: Annotated[
        Annotated[str, Form(f"states, joined by commas: {_STATE.replace('|', ', ')}", f"^({_STATE})(,({_STATE}))*$")]
        | None,
        Query(
            description="Answer only when the run is in one of these states (`terminal` = any final one), when it has "
            "ended, or after `timeout`.",
        ),
    ] = None,
    timeout: Annotated[float, Query(ge=0, le=MAX_SECONDS, description="Seconds to wait at most.")] = 20.0,
) -> schemas.Run:
    """Return one run, at once or when it has reached a state."""
    present = _read(services, run)
    states = states_of(wait or ",".join(RunState))
    if present.state in states:
        return present
    waits.until(present.id, states, timeout, auth.principal.credential_id)
    return _read(services, present.id)


@router.patch(
    "/{run:name}",
    response_model=schemas.Run,
    **merge_patch(RunUpdate, RunNotFound, RunEnded, InvalidEdit, TooManyTags),
)
def update_run(run: RunKey, body: BodyDep, command: EditDep, services: ServicesDep) -> Response:
    """Change hyperparameters, `max_steps` or environment parameters of a run that has not ended; or name and tags of
    any run.

    All changes are made, or none. The answer's `config` has them. A live run goes on with them from its next update,
    others when they go on; the event `hyperparameters_changed` says so, with old and new.
    """
    wanted = body.read(RunUpdate, {})

    def update(session: Session) -> Answer:
        amendments = AmendmentService(session)
        command.expects(lambda: _read_run(session, services, amendments.locked(run)))
        return _changed(session, services, amendments.update(run, wanted))

    return command.run(update)


@router.post(
    "/{run:name}:pause",
    response_model=schemas.Run,
    responses=problems(RunNotFound, RunEnded, RunEnding, *COMMAND_PROBLEMS),
)
def pause_run(run: RunKey, command: CommandDep, services: ServicesDep) -> Response:
    """Pause a run: checkpoint, PAUSED with reason `user`, the worker is free, simulators wait for `:resume`."""
    return command.run(lambda session: _changed(session, services, RunService(session, services.wake_up).pause(run)))


@router.post(
    "/{run:name}:resume",
    response_model=schemas.Run,
    **json_command(RunChanges, RunNotFound, RunEnded, RunNotPaused, InvalidEdit, required=False),
)
def resume_run(run: RunKey, body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Resume a paused run from its newest checkpoint. A body makes changes first, in PATCH's format."""
    changes = body.read(RunChanges, {}) if body.content else None
    return command.run(
        lambda session: _changed(session, services, RunService(session, services.wake_up).resume(run, changes))
    )


@router.post(
    "/{run:name}:stop",
    response_model=schemas.Run,
    responses=problems(RunNotFound, *COMMAND_PROBLEMS),
)
def stop_run(run: RunKey, command: CommandDep, services: ServicesDep) -> Response:
    """End a run well: final checkpoint and export, then SUCCEEDED with reason `user`. An ended one stays as it is.

    A run that has trained nothing, because every behavior of its games was refused, is FAILED with `behavior_refused`.
    """
    return command.run(lambda session: _changed(session, services, RunService(session, services.wake_up).stop(run)))


@router.post(
    "/{run:name}:cancel",
    response_model=schemas.Run,
    responses=problems(RunNotFound, *COMMAND_PROBLEMS),
)
def cancel_run(run: RunKey, command: CommandDep, services: ServicesDep) -> Response:
    """End a run at once: CANCELLED, without a checkpoint. One that has ended stays as it is."""
    return command.run(lambda session: _changed(session, services, RunService(session, services.wake_up).cancel(run)))


@router.delete("/{run:name}", status_code=204, responses=deleted(RunNotFound, RunNotEnded, RunInUse))
def delete_run(
    run: Annotated[Name, Path(max_length=40, description="A run's id. A name would mean another run next.")],
    services: ServicesDep,
) -> None:
    """Delete a run that has ended, with its metrics, events, logs and checkpoints.

    Refused while something outside the run needs it: an alias, a pinned checkpoint, another run that began with one of
    its checkpoints or judged it, or a ladder on which it has played; the answer names them. The controller removes the
    files. To delete it again changes nothing.
    """
    with services.database.write() as session:
        DeletionService(session).delete(run)


def _read_run(session: Session, services: Services, found: Run) -> schemas.Run:
    """Return what the API says of a run, with what it waits for now, and its progress."""
    blocked = _blocked(session, services).of([found], with_limits=True)
    progress = ProgressRepository(session).of([found])
    return _resource(session, found, **vars(progress[found.id]), **vars(blocked[found.id]))


def _resource(session: Session, run: Run, **given: object) -> schemas.Run:
    checkpoints = CheckpointRepository(session)
    takeover = checkpoints.takeovers([run.id]).get(run.id)
    continues = None if takeover is None else takeover.predecessor
    links = {"continues": continues, "continued_by": checkpoints.successors(run.id)}
    return resource(schemas.Run, run, token_id=run.token_id or None, **links, **given)


def _read(services: Services, run: str) -> schemas.Run:
    with services.database.read() as session:
        return _read_run(session, services, RunRepository(session).get(run))


def _prepare(database: Database, wanted: RunCreate) -> NewRun:
    """Read and check the configuration before the writing transaction begins: a large one takes a while."""
    with located(wanted.config, wanted.overrides), database.read() as session:
        prepared = prepare(
            session, wanted.config, name=wanted.config_name, version=wanted.config_version, overrides=wanted.overrides
        )
    kind = prepared.config.kind
    if wanted.kind not in {None, kind}:
        raise InvalidConfig(
            [Problem("kind", "contradiction", f"the configuration is one of a {kind} run; leave kind out")]
        )
    return NewRun(
        prepared.config,
        name=wanted.name or prepared.config.name,
        tags=wanted.tags,
        priority=wanted.priority,
        owner=wanted.owner,
        config_name=prepared.name,
        config_version=prepared.version,
        warnings=locate(wanted.config, prepared.warnings, wanted.overrides),
    )


def _changed(session: Session, services: Services, run: Run) -> Answer:
    return Answer(200, _read_run(session, services, run))


comparison = APIRouter(prefix="/v1/runs:compare", tags=["runs"])

MAX_RUNS: Final = 200


@comparison.get("", responses=problems(RunNotFound, InvalidQuery), openapi_extra=named_in_query("run", "runs"))
def compare_runs(
    runs: Annotated[
        list[Name],
        Query(min_length=1, max_length=MAX_RUNS, description="Ids or names of runs; repeated."),
    ],
    metrics: MetricsDep,
    services: ServicesDep,
) -> RunComparison:
    """Compare runs: the keys of their configurations that differ, and the numbers of `metrics`."""
    with services.database.read() as session:
        repository = RunRepository(session)
        ids = repository.ids_of(runs)
        runs_by_id = repository.named(ids)
        configs = {run_id: dict(_leaves(config)) for run_id, config in repository.configs(ids).items()}
        return RunComparison(
            runs=tuple(listed(session, services, [runs_by_id[run_id] for run_id in ids], metrics.wanted)),
            differing=tuple(_differing([configs[run_id] for run_id in ids])),
            metric_keys=tuple(MetricRepository(session).keys(ids)),
        )


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Yield the path and the value of each leaf. Lists are leaves: their order counts."""
    if isinstance(value, Mapping) and value:
        for key, nested in value.items():
            yield from _leaves(nested, (*path, key))
    else:
        yield join_path(path), value


def _differing(configs: list[JsonObject]) -> Iterator[DifferingKey]:
    for path in sorted({path for config in configs for path in config}):
        values = tuple(config.get(path) for config in configs)
        if any(value != values[0] or type(value) is not type(values[0]) for value in values):
            yield DifferingKey(path=path, values=values)
