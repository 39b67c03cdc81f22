"""Health, readiness, version and metrics of the server."""

from importlib.metadata import version
from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from ludus.schemas.tokens import Scope
from server.app.services import Readiness
from server.kit.http.auth import needs
from server.kit.http.errors import NotReady, ProblemTypeNotFound, problems
from server.kit.http.problems import problem_types
from server.kit.http.services import shared
from server.kit.http.telemetry import HttpTelemetry

router = APIRouter(tags=["operation"])

TelemetryDep = Annotated[HttpTelemetry, Depends(shared(HttpTelemetry))]


class Probe(BaseModel):
    """The answer to a probe."""

    status: str
    """`ok`."""


class Version(BaseModel):
    """Release of this server."""

    version: str
    """Release of Ludus."""
    api: str
    """Version of the API."""


class ProblemType(BaseModel):
    """A way to fail."""

    code: str
    """Stable name for programs."""
    status: int
    """HTTP status of the answer."""
    meaning: str
    """What has happened."""


@router.get("/healthz", responses=problems())
async def health() -> Probe:
    """Answer that this process is alive, without asking any other."""
    return Probe(status="ok")


@router.get("/readyz", responses=problems(NotReady))
async def readiness(request: Request) -> Probe:
    """Return `ok` if this process can answer requests: the database answers and has the right schema."""
    probes = shared(Readiness)(request)  # a dependency would wait for a thread of the requests
    await anyio.to_thread.run_sync(probes.check, limiter=probes.threads)
    return Probe(status="ok")


@router.get("/version", responses=problems())
def server_version() -> Version:
    """Return the server's version."""
    return Version(version=version("ludus"), api="v1")


@router.get("/problems/{code}", responses=problems(ProblemTypeNotFound))
def problem_type(code: Annotated[str, Path(max_length=100, description="The code of a problem.")]) -> ProblemType:
    """Say what a problem means: the `type` of each problem is such a path."""
    types = problem_types()
    if code not in types:
        raise ProblemTypeNotFound(code)
    status, meaning = types[code]
    return ProblemType(code=code, status=status, meaning=meaning)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        **problems(),
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."},
    },
    openapi_extra=needs(Scope.READ, everywhere=True),
)
def operational_metrics(telemetry: TelemetryDep) -> Response:
    """Return operational metrics of this process for Prometheus."""
    return Response(telemetry.exposition(), media_type=CONTENT_TYPE_LATEST)
