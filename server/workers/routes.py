"""Workers over HTTP: slots and their present runs; cordon, uncordon, drain; the queue, which an autoscaler reads."""

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from ludus import schemas
from ludus.schemas.tokens import Scope
from server.kit.db.database import Session
from server.kit.db.keyset import by_name
from server.kit.errors import InvalidQuery, WorkerNotFound
from server.kit.http.auth import needs
from server.kit.http.errors import problems
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer, Command
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.parameters import WorkerKey
from server.kit.http.resources import resource
from server.kit.http.services import ServicesDep, WholeCommandDep, WholeDatabaseDep
from server.runs.scheduling.demand import Demand
from server.workers.models import Worker
from server.workers.repository import QueueRepository
from server.workers.service import HostCordoned, PoolNotFound, WorkerService

router = APIRouter(prefix="/v1/workers", tags=["workers"])

WORKERS = ListForm(
    "workers",
    schemas.Worker,
    by_name(Worker.id, Worker.host, Worker.run_id, Worker.version, Worker.started_at, Worker.heartbeat_at),
    orders=("started_at", "heartbeat_at", "host"),
    key=Worker.id,
    equality={"id", "run_id"},
)


@router.get(
    "",
    response_model=WORKERS.page(),
    responses=problems(*LIST_PROBLEMS),
    openapi_extra=needs(Scope.ADMIN, everywhere=True),
)
def list_workers(listing: ListingDep) -> dict[str, object]:
    """List the slots of all worker hosts, newest first, also those that stopped or fell silent a while ago."""
    return listing.answer(WORKERS)


def _verb(effect: Callable[[WorkerService, str], Sequence[Worker]], command: Command, worker: str) -> Response:
    def run(session: Session) -> Answer:
        slots = effect(WorkerService(session), worker)
        return Answer(200, schemas.SelectedWorkers(workers=tuple(resource(schemas.Worker, slot) for slot in slots)))

    return command.run(run)


@router.post(
    "/{worker:worker}:cordon",
    response_model=schemas.SelectedWorkers,
    responses=problems(WorkerNotFound, *COMMAND_PROBLEMS),
    openapi_extra=needs(Scope.ADMIN, everywhere=True),
)
def cordon_worker(worker: WorkerKey, command: WholeCommandDep) -> Response:
    """Keep runs away from a slot, or from a host with all slots that it has and will have. Present runs go on."""
    return _verb(WorkerService.cordon, command, worker)


@router.post(
    "/{worker:worker}:uncordon",
    response_model=schemas.SelectedWorkers,
    responses=problems(WorkerNotFound, HostCordoned, *COMMAND_PROBLEMS),
    openapi_extra=needs(Scope.ADMIN, everywhere=True),
)
def uncordon_worker(worker: WorkerKey, command: WholeCommandDep) -> Response:
    """Lift the cordon of a slot, or of a host with all of its slots: it takes runs again."""
    return _verb(WorkerService.uncordon, command, worker)


@router.post(
    "/{worker:worker}:drain",
    response_model=schemas.SelectedWorkers,
    responses=problems(WorkerNotFound, *COMMAND_PROBLEMS),
    openapi_extra=needs(Scope.ADMIN, everywhere=True),
)
def drain_worker(worker: WorkerKey, command: WholeCommandDep) -> Response:
    """Cordon a slot or host; its runs save a checkpoint and go to other slots. Done when no slot has a `run_id`."""
    return _verb(WorkerService.drain, command, worker)


queue = APIRouter(prefix="/v1/queue", tags=["workers"])


@queue.get(
    "",
    response_model=schemas.Queue,
    responses=problems(InvalidQuery, PoolNotFound),
    openapi_extra=needs(Scope.READ, everywhere=True),
)
def get_queue(
    services: ServicesDep,
    database: WholeDatabaseDep,
    demand: Annotated[
        str | None,
        Query(max_length=400, description="Only runs with exactly this demand: GPUs and labels, as in 0 or 1;a100."),
    ] = None,
    pool: Annotated[
        str | None, Query(max_length=40, description="Only runs for which this declared pool starts workers.")
    ] = None,
) -> schemas.Queue:
    """Return the runs of all projects that wait for a worker, by their demand, with the slots that serve them.

    An autoscaler starts `missing_slots` more slots.
    """
    policy = services.settings.scheduling
    if pool is not None and pool not in policy.pools:
        raise PoolNotFound(pool, sorted(policy.pools))
    try:
        parsed = None if demand is None else Demand.named(demand)
    except ValueError as error:
        raise InvalidQuery("demand", str(error)) from None
    with database.read() as session:
        queue_now = QueueRepository(session).read(policy, services.settings.worker.lease_seconds, parsed)
    chosen = [queued for queued in queue_now if parsed in {None, queued.demand} and pool in {None, queued.pool}]
    return schemas.Queue(
        runs=sum(queued.runs for queued in chosen),
        startable_runs=sum(queued.startable_runs for queued in chosen),
        missing_slots=sum(queued.missing_slots for queued in chosen),
        oldest_seconds=max((queued.oldest_seconds for queued in chosen), default=0.0),
        demands=tuple(
            resource(
                schemas.QueuedDemand,
                queued,
                demand=queued.demand.name,
                gpus=queued.demand.gpus,
                labels=sorted(queued.demand.labels),
                slots=resource(schemas.DemandSlots, queued.slots),
            )
            for queued in chosen
        ),
    )
