"""The queue over HTTP: `GET /v1/queue`, whose `missing_slots` an autoscaler reads."""

from typing import Annotated

from fastapi import APIRouter, Query

from ludus import schemas
from ludus.schemas.tokens import Scope
from server.kit.errors import InvalidQuery
from server.kit.http.auth import needs
from server.kit.http.errors import problems
from server.kit.http.resources import resource
from server.kit.http.services import ServicesDep, WholeDatabaseDep
from server.runs.scheduling.demand import Demand
from server.workers.errors import PoolNotFound
from server.workers.queue.repository import QueueRepository

router = APIRouter(prefix="/v1/queue", tags=["workers"])


@router.get(
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
        asked = None if demand is None else Demand.named(demand)
    except ValueError as error:
        raise InvalidQuery("demand", str(error)) from None
    with database.read() as session:
        found = QueueRepository(session).read(policy, services.settings.worker.lease_seconds, asked)
    chosen = [each for each in found if asked in {None, each.demand} and pool in {None, each.pool}]
    return schemas.Queue(
        runs=sum(each.runs for each in chosen),
        startable_runs=sum(each.startable_runs for each in chosen),
        missing_slots=sum(each.missing_slots for each in chosen),
        oldest_seconds=max((each.oldest_seconds for each in chosen), default=0.0),
        demands=tuple(
            resource(
                schemas.QueuedDemand,
                each,
                demand=each.demand.name,
                gpus=each.demand.gpus,
                labels=sorted(each.demand.labels),
                slots=resource(schemas.DemandSlots, each.slots),
            )
            for each in chosen
        ),
    )
