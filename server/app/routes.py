"""What operators ask: is it alive, is it ready, which version is it, how does it do."""

from importlib.metadata import version

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from server.access.tokens.principal import Scope
from server.app.access import needs
from server.app.services import ServicesDep
from server.kit.http.errors import NotReady, problems

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    """A sign of life."""

    status: str = Field(description="`ok`.")


class Version(BaseModel):
    """What runs here."""

    version: str = Field(description="Release of Ludus.")
    api: str = Field(description="Version of the API.")


@router.get("/healthz", response_model=Health, responses=problems())
def health() -> Health:
    """Say that this process answers. Asks nobody else."""
    return Health(status="ok")


@router.get("/readyz", response_model=Health, responses=problems(NotReady))
def readiness(services: ServicesDep) -> Health:
    """Say whether this process can do its work: the database and the broker answer."""
    services.readiness.check()
    return Health(status="ok")


@router.get("/version", response_model=Version, responses=problems())
def server_version() -> Version:
    """Return the server's version."""
    return Version(version=version("ludus"), api="v1")


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        **problems(),
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."},
    },
    openapi_extra=needs(Scope.READ, everywhere=True),
)
def operational_metrics(services: ServicesDep) -> Response:
    """Return operational metrics of this process for Prometheus."""
    return Response(services.telemetry.exposition(), media_type=CONTENT_TYPE_LATEST)
