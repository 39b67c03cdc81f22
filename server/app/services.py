"""Build the objects that one application shares between requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import anyio

from server.access.checker import FailedAttempts, SessionChecker, TokenChecker, watch_credentials
from server.kit.artifacts.opening import open_store
from server.kit.artifacts.store import ArtifactStore
from server.kit.db.database import Database
from server.kit.db.migrate import check as check_schema
from server.kit.errors import LudusError
from server.kit.http import services
from server.kit.http.errors import NotReady
from server.kit.http.idempotency import InFlight
from server.kit.http.telemetry import HttpTelemetry
from server.kit.queue import WakeUpQueue, make_celery
from server.kit.rates import Rate
from server.kit.settings import Settings
from server.kit.token_watcher import TokenWatcher
from server.kit.tracing import Tracer, open_tracer
from server.kit.wake_up import WakeUp
from server.runs.events.projects import ProjectEvents
from server.runs.events.streams import DatabaseEvents, EventStreams, StreamLimits
from server.runs.events.tailer import Tailer
from server.runs.waits import Waits
from server.workers.fleet import FleetMetrics


class Readiness:
    """Readiness of this process, for probes that ask every few seconds: the database answers, and its schema fits.

    It asks what requests need. The broker is not among that, because a lost wake-up is harmless (ADR 2): the metric
    `ludus_broker_up` has its state.
    """

    def __init__(self, database: Database) -> None:
        self.threads = anyio.CapacityLimiter(2)
        """Threads of their own for checks: those of requests may all be busy."""
        self._database = database
        self._schema_fits = False

    def check(self) -> None:
        """Check the database, and once its schema. Raises NotReady with the reason."""
        try:
            if self._schema_fits:
                self._database.ping()
            else:
                check_schema(self._database)
                self._schema_fits = True
        except LudusError as error:
            raise NotReady({"database": error}) from error


@dataclass(frozen=True)
class Services(services.Services):
    """All objects that one application shares between requests; routes see them as dependencies."""

    telemetry: HttpTelemetry
    streams: EventStreams
    waits: Waits
    readiness: Readiness
    tokens: TokenChecker
    sessions: SessionChecker
    attempts: FailedAttempts
    watcher: TokenWatcher
    tracer: Tracer | None = None

    @classmethod
    def build(
        cls,
        settings: Settings,
        *,
        database: Database | None = None,
        wake_up: WakeUp | None = None,
        artifacts: ArtifactStore | None = None,
        limits: StreamLimits | None = None,
    ) -> Self:
        """Build the objects that are not given as the settings say."""
        database = database or Database.from_settings(settings.database)
        wake_up = WakeUpQueue(make_celery(settings)) if wake_up is None else wake_up
        fleet = FleetMetrics(database, wake_up, settings.scheduling, settings.worker.lease_seconds)
        telemetry = HttpTelemetry(fleet)
        tailer = Tailer(DatabaseEvents(database))
        watcher = watch_credentials(database)
        database.tracer = tracer = open_tracer(settings.telemetry, "api")
        token = None if settings.api.token is None else settings.api.token.get_secret_value()
        # Where no token is demanded, a wrong one is no failure: it may be another server's.
        failures = settings.api.failures_per_minute if settings.api.demands_token else 0
        return cls(
            settings=settings,
            database=database,
            wake_up=wake_up,
            artifacts=artifacts or open_store(settings.storage),
            telemetry=telemetry,
            streams=EventStreams(tailer, ProjectEvents(database), watcher, telemetry, limits),
            waits=Waits(tailer, watcher, telemetry),
            readiness=Readiness(database),
            tokens=TokenChecker(database, token),
            sessions=SessionChecker(database, token),
            attempts=FailedAttempts(Rate(failures)),
            watcher=watcher,
            tracer=tracer,
        )

    @property
    def shared(self) -> Mapping[type, object]:
        """The objects by type, for `server.kit.http.services.shared`."""
        services = (self.telemetry, self.streams, self.waits, self.readiness)
        access = (self.tokens, self.sessions, self.attempts, self.watcher)
        return {type(service): service for service in (*services, *access, InFlight())}
