"""Runs: ask for one, look at it, wait for it, let it pause and go on, end it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import StringConstraints

from server.app.access import VisitDep
from server.app.services import CommandDep, Services, ServicesDep
from server.app.waits import MAX_SECONDS, states_of
from server.assessments.service import AssessmentService
from server.checkpoints.service import CheckpointService
from server.configs.repository import ConfigRepository
from server.configs.service import ConfigService, Prepared
from server.demonstrations.service import DemonstrationService
from server.kit.db.database import Database, Session
from server.kit.errors import (
    ConfigNotFound,
    IllegalTransition,
    InvalidConfig,
    InvalidEdit,
    InvalidQuery,
    Problem,
    RunEnding,
    RunInUse,
    RunNotEnded,
    RunNotFound,
    RunNotPaused,
)
from server.kit.http import filters
from server.kit.http.bodies import EXAMPLE, BodyDep, declare_body, declare_json
from server.kit.http.errors import BodyInvalid, TooManyWaiters, UnsupportedMediaType, problems
from server.kit.http.fields import NAME, TEXT, Name, RunKey, Tag
from server.kit.http.filters import EQUALITY, Field
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.listing import Order
from server.ladders.service import LadderService
from server.metrics.listed import ListedMetric
from server.metrics.repository import MetricRepository
from server.runs.amendments.schemas import RunChanges
from server.runs.deletion.service import DeletionService
from server.runs.models import Run
from server.runs.repository import METRIC, RunRepository
from server.runs.schemas import ConfigWarning, RunCreate, RunListed, RunPage, RunPlan, RunRead, RunSummary
from server.runs.service import RunService
from server.runs.standstill.repository import StandstillRepository
from server.runs.states import RunKind, RunState, StopReason

router = APIRouter(prefix="/v1/runs", tags=["runs"])

RUNS = ListForm(
    name="runs",
    filters={
        "state": Field(filters.choice(RunState), EQUALITY),
        "tag": Field(filters.word, EQUALITY),
        "name": Field(filters.word),
        "kind": Field(filters.choice(RunKind), EQUALITY),
        "stop_reason": Field(filters.choice(StopReason), EQUALITY),
        "step": Field(filters.integer),
        "priority": Field(filters.integer),
        "created_at": Field(filters.time),
        "updated_at": Field(filters.time),
        "finished_at": Field(filters.time),
    },
    orders=frozenset({"created_at", "updated_at", "finished_at", "name", "state", "step", "priority", METRIC}),
    default=Order("created_at"),
)


class ListedMetrics:
    """The metrics that a list of runs is asked for."""

    def __init__(
        self,
        metrics: Annotated[
            list[Annotated[str, StringConstraints(min_length=1, max_length=420, pattern=TEXT)]] | None,
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
        """What page tokens are bound to."""

    def sorts(self, order: Order) -> ListedMetric | None:
        """Return the metric that sorts the list, if one does."""
        if order.field != METRIC:
            return None
        if not self.wanted:
            raise InvalidQuery("order_by", "metric stands for the first of the parameter metrics, which is missing")
        return self.wanted[0]


MetricsDep = Annotated[ListedMetrics, Depends()]

_STATE = "|".join(["terminal", *RunState])


@router.post(
    "",
    status_code=201,
    response_model=RunRead,
    responses={
        200: {"model": RunPlan, "description": "With `validate_only`: what the run would be."},
        **problems(InvalidConfig, ConfigNotFound, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS),
    },
    openapi_extra=declare_body(RunCreate, EXAMPLE),
)
def create_run(
    body: BodyDep,
    command: CommandDep,
    services: ServicesDep,
    visit: VisitDep,
    name: Annotated[Name | None, Query(description="Sets the body's field; for YAML bodies.")] = None,
    tag: Annotated[list[Tag] | None, Query(max_length=50, description="Sets the body's `tags`.")] = None,
    validate_only: Annotated[bool | None, Query(description="Sets the body's field.")] = None,
) -> Response:
    """Queue a training run. The body is JSON, or the bare configuration as YAML."""
    wanted = body.read(RunCreate, {"name": name, "tags": tag, "validate_only": validate_only})
    prepared = _prepare(services.database, wanted)
    if wanted.validate_only:
        return command.preview(_plan(wanted, prepared))
    return command.run(
        lambda session: _created(
            RunService(session, services.bell).create(
                prepared.config.model_dump(mode="json"),
                name=_name(wanted, prepared),
                tags=wanted.tags,
                priority=wanted.priority,
                owner=wanted.owner,
                token_id=visit.principal.token_id,
                config_name=prepared.name,
                config_version=prepared.version,
                demonstrations=DemonstrationService(session).check(prepared.config, lock=True),
                checkpoints=CheckpointService(session).check(prepared.config, lock=True),
                ladder=LadderService(session).check(prepared.config, lock=True),
                warnings=prepared.warnings,
            )
        )
    )


@router.get("", response_model=RunPage, responses=problems(InvalidQuery, *LIST_PROBLEMS))
def list_runs(listing: ListingDep, metrics: MetricsDep, services: ServicesDep) -> RunPage:
    """List runs, newest first. A filter's text that ends in `*` matches a prefix: `name = "nightly-*"`.

    `order_by=metric desc` sorts by the first of `metrics`; runs that have no such number are left out then.
    """
    query = listing.query(RUNS, metrics.bound)
    with services.database.read() as session:
        page = RunRepository(session).list(query, metrics.sorts(query.order))
        StandstillRepository(session, services.settings.worker.lease_seconds).tell(page.items)
        values = MetricRepository(session).listed([run.id for run in page.items], metrics.wanted)
        runs = [
            RunListed(
                **RunSummary.model_validate(run).model_dump(),
                metrics={each.text: values[run.id][each] for each in metrics.wanted},
            )
            for run in page.items
        ]
    return RunPage(runs=runs, next_page_token=listing.token(RUNS, page, metrics.bound))


@router.get("/{run:name}", response_model=RunRead, responses=problems(RunNotFound, TooManyWaiters))
def get_run(
    run: RunKey,
    services: ServicesDep,
    visit: VisitDep,
    wait: Annotated[
        str | None,
        Query(
            pattern=f"^({_STATE})(,({_STATE}))*$",
            description="Answer only when the run is in one of these states (`terminal` = any final one), when it has "
            "ended, or after `timeout`.",
        ),
    ] = None,
    timeout: Annotated[float, Query(ge=0, le=MAX_SECONDS, description="Seconds to wait at most.")] = 20.0,
) -> RunRead:
    """Return one run, at once or when it has reached a state."""
    found = _read(services, run)
    wanted = states_of(wait or ",".join(RunState))
    if found.state in wanted:
        return found
    services.waits.until(found.id, wanted, timeout, visit.principal.token_id)
    return _read(services, found.id)


@router.post(
    "/{run:name}:pause",
    response_model=RunRead,
    responses=problems(RunNotFound, RunEnding, IllegalTransition, *COMMAND_PROBLEMS),
)
def pause_run(run: RunKey, command: CommandDep, services: ServicesDep) -> Response:
    """Let a run pause: checkpoint, PAUSED with reason `user`, the worker is free, simulators wait for `:resume`."""
    return command.run(lambda session: _changed(session, services, RunService(session, services.bell).pause(run)))


@router.post(
    "/{run:name}:resume",
    response_model=RunRead,
    responses=problems(RunNotFound, RunNotPaused, InvalidEdit, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS),
    openapi_extra=declare_json(RunChanges, required=False),
)
def resume_run(run: RunKey, body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Let a paused run go on from its newest checkpoint. A body makes changes first, as PATCH takes them."""
    changes = body.read(RunChanges, {}) if body.content else None
    return command.run(
        lambda session: _changed(session, services, RunService(session, services.bell).resume(run, changes))
    )


@router.post(
    "/{run:name}:stop", response_model=RunRead, responses=problems(RunNotFound, IllegalTransition, *COMMAND_PROBLEMS)
)
def stop_run(run: RunKey, command: CommandDep, services: ServicesDep) -> Response:
    """End a run well: final checkpoint and export, then SUCCEEDED with reason `user`."""
    return command.run(lambda session: _changed(session, services, RunService(session, services.bell).stop(run)))


@router.post(
    "/{run:name}:cancel", response_model=RunRead, responses=problems(RunNotFound, IllegalTransition, *COMMAND_PROBLEMS)
)
def cancel_run(run: RunKey, command: CommandDep, services: ServicesDep) -> Response:
    """End a run at once: CANCELLED, without a checkpoint."""
    return command.run(lambda session: _changed(session, services, RunService(session, services.bell).cancel(run)))


@router.delete(
    "/{run:name}",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "It is gone."}, **problems(RunNotFound, RunNotEnded, RunInUse)},
)
def delete_run(
    run: Annotated[
        str, Path(max_length=40, pattern=NAME, description="A run's id. A name would mean another run next.")
    ],
    services: ServicesDep,
) -> Response:
    """Delete a run that has ended, with its metrics, events, logs and checkpoints.

    Refused while something outside the run needs it: an alias, a pinned checkpoint, another run that began with one of
    its checkpoints or judged it, or a ladder on which it has played; the answer names them. The steward removes the
    files. To delete it again changes nothing.
    """
    with services.database.write() as session:
        DeletionService(session).delete(run)
    return Response(status_code=204)


def read_run(session: Session, services: Services, found: Run) -> RunRead:
    """Return what the API says of a run, with what it waits for now."""
    standstill = StandstillRepository(session, services.settings.worker.lease_seconds)
    standstill.tell([found], with_limits=True)
    read = RunRead.model_validate(found)
    return read.model_copy(update={"needs_action": standstill.needs_action(found)})


def _read(services: Services, run: str) -> RunRead:
    with services.database.read() as session:
        return read_run(session, services, RunRepository(session).get(run))


def _prepare(database: Database, wanted: RunCreate) -> Prepared:
    """Read and check the configuration before the writing transaction begins: a large one takes a while."""
    with database.read() as session:
        prepared = ConfigService(ConfigRepository(session)).prepare(
            wanted.config,
            name=wanted.config_name,
            version=wanted.config_version,
            overrides=wanted.overrides,
            complete=AssessmentService(session).complete,
        )
        DemonstrationService(session).check(prepared.config)
        CheckpointService(session).check(prepared.config)
        LadderService(session).check(prepared.config)
    kind = RunKind.of(prepared.config.model_dump(mode="json"))
    if wanted.kind not in {None, kind}:
        raise InvalidConfig(
            [Problem("kind", "contradiction", f"the configuration is one of a {kind} run; leave kind out")]
        )
    return prepared


def _name(wanted: RunCreate, prepared: Prepared) -> str | None:
    """Return the name that was asked for, else what the configuration calls the run."""
    return wanted.name or prepared.config.name


def _plan(wanted: RunCreate, prepared: Prepared) -> RunPlan:
    return RunPlan(
        kind=RunKind.of(prepared.config.model_dump(mode="json")),
        name=_name(wanted, prepared),
        tags=sorted(set(wanted.tags)),
        priority=wanted.priority,
        owner=wanted.owner,
        config_name=prepared.name,
        config_version=prepared.version,
        config=prepared.config.model_dump(mode="json"),
        warnings=[ConfigWarning.model_validate(each) for each in prepared.warnings],
    )


def _created(run: Run) -> Answer:
    return Answer(201, RunRead.model_validate(run), f"/v1/runs/{run.id}")


def _changed(session: Session, services: Services, run: Run) -> Answer:
    return Answer(200, read_run(session, services, run))
