"""The application factory. Importing this module has no effect; `create_app` builds everything, without torch."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import structlog
from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Route

from ludus.plugins import broken
from server.access.routes import audit_log, simulator_tokens
from server.access.routes import router as tokens
from server.app.access import authorize
from server.app.authentication import Authentication
from server.app.documentation import add_documentation
from server.app.middleware import BodyLimit, EntityTags, Heads, Prefix, RequestContext
from server.app.openapi import describe
from server.app.routes import router as operation
from server.app.services import Services
from server.app.sessions import router as sessions
from server.app.tracing import RequestSpans
from server.assessments.routes import router as assessments
from server.checkpoints.routes import alias_routes, request_routes, retention_routes, uploads
from server.checkpoints.routes import router as checkpoints
from server.demonstrations.routes import router as demonstrations
from server.kit.db.texts import JsonObject
from server.kit.errors import LudusError
from server.kit.http.parameters import refuse_unknown_parameters
from server.kit.http.problems import on_http_exception, on_ludus_error, on_validation_error
from server.kit.settings import Settings
from server.ladders.routes import router as ladders
from server.lifecycle.experiments.routes import router as experiments
from server.lifecycle.routes import comparison
from server.lifecycle.routes import router as runs
from server.metrics.routes import files as metric_files
from server.metrics.routes import many as series
from server.metrics.routes import router as metrics
from server.runs.events.routes import of_project as project_events
from server.runs.events.routes import router as events
from server.runs.routes import attempts
from server.runs.routes import router as run_details
from server.runs.stored_configs.routes import presets
from server.runs.stored_configs.routes import router as configs
from server.runs.waits import LIMIT as WAITERS
from server.simulators.recordings.routes import router as recordings
from server.simulators.routes import collectors
from server.simulators.routes import of_all_runs as all_simulators
from server.simulators.routes import router as simulators
from server.web.pages import add_pages
from server.webhooks.routes import router as webhooks
from server.workers.routes import queue
from server.workers.routes import router as workers

log = structlog.get_logger()

ROUTERS: tuple[APIRouter, ...] = (
    runs,
    comparison,
    request_routes,
    assessments,
    run_details,
    attempts,
    events,
    project_events,
    metrics,
    metric_files,
    series,
    checkpoints,
    uploads,
    retention_routes,
    alias_routes,
    simulators,
    all_simulators,
    collectors,
    configs,
    presets,
    demonstrations,
    experiments,
    recordings,
    ladders,
    webhooks,
    workers,
    queue,
    tokens,
    simulator_tokens,
    sessions,
    audit_log,
    operation,
)
API = APIRouter(
    dependencies=[Depends(authorize), Depends(refuse_unknown_parameters)],
    generate_unique_id_function=lambda route: route.name,
)
"""All routes. FastAPI analyses a router's routes when it is first asked for one of them, which takes up to 0.1 s. It
does that once in a process, because the applications of a process share this router."""
for _router in ROUTERS:
    API.include_router(_router)
BODY_LIMIT_BYTES = 2 * 1024 * 1024
THREADS = 40
"""Requests that are handled at once, long polls not counted. The database has more connections."""


def create_app(settings: Settings, services: Services | None = None) -> FastAPI:
    """Build the application. `services` replaces what is built from the settings."""
    services = services or Services.build(settings)
    app = FastAPI(
        title="Ludus",
        version=version("ludus"),
        summary="Training runs for game agents.",
        routes=API.routes,
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    app.state.shared = services.shared
    add_documentation(app)
    add_pages(app)
    app.state.routes = [
        *(route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)),
        *(route for route in app.routes if type(route) is Route),
    ]
    app.add_exception_handler(LudusError, on_ludus_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(EntityTags)
    app.add_middleware(
        BodyLimit,
        limit=BODY_LIMIT_BYTES,
        files={
            demonstrations.prefix: settings.storage.demonstration_bytes,
            uploads.prefix: settings.storage.checkpoint_bytes,
        },
        seconds=settings.api.body_seconds,
    )
    app.add_middleware(Authentication, services=services)
    app.add_middleware(Heads)
    if services.tracer is not None:
        app.add_middleware(RequestSpans, tracer=services.tracer)
    app.add_middleware(RequestContext, telemetry=services.telemetry)
    if settings.api.prefix:
        app.add_middleware(Prefix, prefix=settings.api.prefix)  # the last one added is the outermost
    plain = app.openapi

    def openapi() -> JsonObject:
        if app.openapi_schema is None:
            app.openapi_schema = describe(plain(), settings.api.prefix)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the description
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    current_default_thread_limiter().total_tokens = THREADS + WAITERS
    for problem in broken():
        log.warning("plugin_broken", problem=str(problem))
    yield
    services.streams.close()
    services.watcher.close()
    services.database.close()
    if services.tracer is not None:
        services.tracer.close()
