"""Dependencies of routes: the application's shared objects, and the command that a request is.

`create_app` stores the shared objects in `app.state`. A feature with an object of its own (streams, long polls)
declares a dependency on it with `shared`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from server.kit.artifacts.store import ArtifactStore
from server.kit.db.database import Database
from server.kit.http.auth import AuthDep, AuthenticatedRequest
from server.kit.http.bodies import BodyDep
from server.kit.http.idempotency import Command, InFlight, fingerprint_of, key_scope, read_key
from server.kit.settings import Settings
from server.kit.wake_up import WakeUp

Shared = TypeVar("Shared")


def shared(kind: type[Shared]) -> Callable[[Request], Shared]:
    """Return a dependency: the application's object of this type, from `app.state.shared`."""

    def find(request: Request) -> Shared:
        service = request.app.state.shared[kind]
        assert isinstance(service, kind)
        return service

    return find


@dataclass(frozen=True)
class Services:
    """The objects that routes of all features share."""

    settings: Settings
    database: Database
    wake_up: WakeUp
    artifacts: ArtifactStore


def services_of(request: Request) -> Services:
    """Return the shared objects, with the database narrowed to the request's project.

    Each transaction of the request writes its entry of the audit log, and its events name the principal.
    """
    services = request.app.state.services
    assert isinstance(services, Services)
    auth = getattr(request.state, "auth", None)
    if auth is None:  # a path that is open without a token
        return services
    assert isinstance(auth, AuthenticatedRequest)
    return replace(services, database=services.database.within(auth.narrowed, auth.before_commit, auth.principal.name))


ServicesDep = Annotated[Services, Depends(services_of)]


def database_of(services: ServicesDep) -> Database:
    """Return the database, narrowed to the request's project."""
    return services.database


DatabaseDep = Annotated[Database, Depends(database_of)]


def whole_database_of(services: ServicesDep, auth: AuthDep) -> Database:
    """Return the database with the rows of all projects, for routes that concern all of them (`needs`)."""
    return services.database.within(None, auth.before_commit, auth.principal.name)


WholeDatabaseDep = Annotated[Database, Depends(whole_database_of)]

IdempotencyKeyHeader = Annotated[
    str | None,
    Header(
        max_length=600,
        description="A text of your choice that names this request, for instance a UUID: repeating the request "
        "with it repeats the answer, not the effect. Kept for 24 hours.",
    ),
]


def command_on(
    request: Request, services: Services, auth: AuthenticatedRequest, key: str | None, *content: bytes
) -> Command:
    """Return the command of a request with this idempotency key and content. Raises IdempotencyKeyInvalid."""
    path = request.url.path
    return Command(
        services.database,
        shared(InFlight)(request),
        scope=key_scope(auth.project, request.method, path),
        key=read_key(key),
        fingerprint=fingerprint_of(path.encode(), request.url.query.encode(), *content),
    )


def command_of(
    request: Request, services: ServicesDep, auth: AuthDep, body: BodyDep, idempotency_key: IdempotencyKeyHeader = None
) -> Command:
    """Return the command that this request is. Raises RequestValidationError for a body where none is read."""
    route: APIRoute = request.scope["route"]
    if "requestBody" not in (route.openapi_extra or {}) and body.content.strip() not in {b"", b"{}"}:
        words = "this request takes no body, so that nothing in it would be done; leave it out"
        raise RequestValidationError([{"type": "unknown_body", "loc": ("body",), "msg": words}])
    return command_on(request, services, auth, idempotency_key, body.media_type.encode(), body.content)


CommandDep = Annotated[Command, Depends(command_of)]


def edit_of(
    command: CommandDep,
    if_match: Annotated[
        str | None,
        Header(max_length=2000, description="ETag of what was read: it is changed only if it is still the same (412)."),
    ] = None,
) -> Command:
    """Return the command of a request that changes a resource, and what it expects this to be."""
    command.if_match = if_match
    return command


EditDep = Annotated[Command, Depends(edit_of)]


def whole_command_of(
    request: Request,
    services: ServicesDep,
    auth: AuthDep,
    database: WholeDatabaseDep,
    body: BodyDep,
    idempotency_key: IdempotencyKeyHeader = None,
) -> Command:
    """Return the command that this request is, whose transaction has the rows of all projects."""
    return command_of(request, replace(services, database=database), auth, body, idempotency_key)


WholeCommandDep = Annotated[Command, Depends(whole_command_of)]
