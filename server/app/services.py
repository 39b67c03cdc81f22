"""What the routes work with: built once per application, handed to handlers as dependencies."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

from fastapi import Depends, Header, Request

from server.access.tokens.checker import TokenChecker
from server.access.tokens.vigil import TokenVigil
from server.app.access import Visit, VisitDep
from server.app.bell import Bell
from server.app.readiness import Readiness
from server.app.repository import EventHeads
from server.app.streams import EventStreams, StreamLimits, encode_event
from server.app.tailer import Entry, Head, Tailer
from server.app.telemetry import HttpTelemetry
from server.app.waits import Waits
from server.kit.artifacts import ArtifactStore
from server.kit.artifacts.opening import open_store
from server.kit.db.database import Database
from server.kit.http.bodies import BodyDep
from server.kit.http.idempotency import Command, InFlight, RequestMark, fingerprint_of, key_scope, read_key
from server.kit.queue import Doorbell, make_celery
from server.kit.settings import Settings
from server.runs.events.repository import EventRepository
from server.runs.events.schemas import EventRead
from server.workers.fleet.collector import FleetCollector


class DatabaseEvents:
    """Events of runs as the streams want them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def heads(self, run_ids: Collection[str]) -> Mapping[str, Head]:
        """Return where the logs of these runs stand."""
        with self._database.read() as session:
            return EventHeads(session).of(run_ids)

    def after(self, run_id: str, seq: int, limit: int) -> Sequence[Entry]:
        """Return encoded events."""
        with self._database.read() as session:
            events = EventRepository(session).page(run_id, seq, limit)
        return [
            Entry(event.seq, encode_event(event.seq, EventRead.model_validate(event).model_dump(mode="json")))
            for event in events
        ]


@dataclass(frozen=True)
class Services:
    """Everything that one application shares between requests."""

    settings: Settings
    database: Database
    bell: Bell
    artifacts: ArtifactStore
    telemetry: HttpTelemetry
    tailer: Tailer
    streams: EventStreams
    waits: Waits
    readiness: Readiness
    in_flight: InFlight
    tokens: TokenChecker
    vigil: TokenVigil

    @classmethod
    def build(
        cls,
        settings: Settings,
        *,
        database: Database | None = None,
        bell: Bell | None = None,
        artifacts: ArtifactStore | None = None,
        limits: StreamLimits | None = None,
    ) -> Self:
        """Build what is not given as the settings say."""
        database = database or Database.from_settings(settings.database)
        bell = Doorbell(make_celery(settings)) if bell is None else bell
        telemetry = HttpTelemetry(FleetCollector(database, settings.worker.lease_seconds))
        source = DatabaseEvents(database)
        tailer = Tailer(source)
        vigil = TokenVigil(database)
        token = settings.api.token
        return cls(
            settings=settings,
            database=database,
            bell=bell,
            artifacts=artifacts or open_store(settings.storage),
            telemetry=telemetry,
            tailer=tailer,
            streams=EventStreams(tailer, source, vigil, telemetry, limits),
            waits=Waits(tailer, vigil, telemetry),
            readiness=Readiness(database, bell),
            in_flight=InFlight(),
            tokens=TokenChecker(database, None if token is None else token.get_secret_value()),
            vigil=vigil,
        )


def services_of(request: Request) -> Services:
    """Return the application's services, with the database as the request may see it: its project alone.

    What the request changes there is entered in the audit log in the same transaction.
    """
    services = request.app.state.services
    assert isinstance(services, Services)
    visit = getattr(request.state, "visit", None)
    if visit is None:  # a path that is open to everybody
        return services
    assert isinstance(visit, Visit)
    return replace(services, database=services.database.within(visit.narrowed, visit.before_commit))


ServicesDep = Annotated[Services, Depends(services_of)]


def database_of(services: ServicesDep) -> Database:
    """Return the database."""
    return services.database


DatabaseDep = Annotated[Database, Depends(database_of)]


def command_of(
    request: Request,
    services: ServicesDep,
    visit: VisitDep,
    body: BodyDep,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=600,
            description="A text of your choice that names this request, for instance a UUID: repeating the request "
            "with it repeats the answer, not the effect. Kept for 24 hours.",
        ),
    ] = None,
) -> Command:
    """Return the command that this request is."""
    path = request.url.path
    mark = RequestMark(
        scope=key_scope(visit.project, request.method, path),
        key=read_key(idempotency_key),
        fingerprint=fingerprint_of(path.encode(), request.url.query.encode(), body.media_type.encode(), body.content),
    )
    return Command(services.database, services.in_flight, mark)


CommandDep = Annotated[Command, Depends(command_of)]
