"""Server-sent events: a run's log as it grows, or that of a project.

In a run's stream each message carries the event's sequence number as its id, so a client that reconnects with
`Last-Event-ID` continues exactly where it stopped; ids of a project's stream are described in
`server.runs.events.projects`. A comment is sent when nothing happens, so that proxies and clients see that the stream
lives. After a run's last event comes the message `end`, and the stream closes; when the token is not valid any more,
the last message is `error` with a problem.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import anyio.to_thread
import structlog

from ludus import schemas
from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable
from server.kit.http.errors import TooManyStreams
from server.kit.http.event_stream import EventStreamResponse, encode_event, encode_problem
from server.kit.http.resources import dump, resource
from server.kit.http.telemetry import HttpTelemetry
from server.kit.states import TERMINAL
from server.kit.token_watcher import TokenWatcher, on_loop
from server.runs.events.projects import LOOK_SECONDS, ProjectEvents
from server.runs.events.repository import PAGE_SIZE, EventRepository
from server.runs.events.tailer import Entry, Head, Tailer

log = structlog.get_logger(__name__)

HELLO = b": hello\n\n"
PING = b": ping\n\n"
OUTAGE_SECONDS = 1.0
"""Between two tries to read a past that the database does not give."""


@dataclass(frozen=True)
class StreamLimits:
    """Limits of event streams."""

    clients: int = 1000
    """Open streams in this process, of runs and projects together."""
    ping_seconds: float = 15.0
    send_seconds: float = 20.0
    """A client that takes nothing for so long is dropped."""


class DatabaseEvents:
    """Reads and encodes the events of runs from the database. Its log ids are those of runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def heads(self, log_ids: Collection[str]) -> Mapping[str, Head]:
        """Return the newest sequence number and the state of each of these runs that exists."""
        with self._database.read() as session:
            return EventRepository(session).heads(log_ids)

    def after(self, log_id: str, seq: int, limit: int) -> Sequence[Entry]:
        """Return a run's events with a sequence number above `seq`, in order, at most `limit`, encoded."""
        with self._database.read() as session:
            events = EventRepository(session).page(log_id, seq, limit)
        return [Entry(event.seq, encode_event(event.seq, dump(resource(schemas.Event, event)))) for event in events]


class EventStreams:
    """Opens streams, up to a limit."""

    def __init__(
        self,
        runs: Tailer,
        projects: ProjectEvents,
        watcher: TokenWatcher,
        telemetry: HttpTelemetry,
        limits: StreamLimits | None = None,
    ) -> None:
        self.limits = limits or StreamLimits()
        self.open = 0
        """Streams that are open now. Only touched on the event loop."""
        self._runs = runs
        self._project_events = projects
        self._projects = Tailer(projects, LOOK_SECONDS)
        self._watcher = watcher
        self._telemetry = telemetry

    def of_run(self, run_id: str, after: int, credential_id: str | None) -> EventStreamResponse:
        """Answer with the events of a run after `after`, while the token is valid. Raises TooManyStreams."""
        self._check_limit()
        return self._stream(self._runs, run_id, after, credential_id, HELLO)

    def of_project(self, project: str, position: int | None, credential_id: str | None) -> EventStreamResponse:
        """Answer with the events of a project (`*`: of all) from now on, or since an earlier stream's position, while
        the token is valid. Raises TooManyStreams.
        """
        self._check_limit()
        after, opening = self._project_events.open(project, position)
        return self._stream(self._projects, project, after, credential_id, HELLO + opening)

    def close(self) -> None:
        """End all streams, and the long polls that wait for a run."""
        self._runs.close()
        self._projects.close()

    def _check_limit(self) -> None:
        if self.open >= self.limits.clients:
            raise TooManyStreams(self.limits.clients)

    def _stream(
        self, tailer: Tailer, log_id: str, after: int, credential_id: str | None, opening: bytes
    ) -> EventStreamResponse:
        return EventStreamResponse(
            lambda scope: self._messages(scope, tailer, log_id, after, credential_id, opening),
            self.limits.send_seconds,
            self._counted(log_id),
        )

    @contextmanager
    def _counted(self, log_id: str) -> Iterator[None]:
        self.open += 1
        self._telemetry.event_streams.inc()
        try:
            yield
        except TimeoutError:
            self._telemetry.dropped_streams.inc()
            log.info("event_stream_dropped", log_id=log_id, reason="the client takes nothing")
        finally:
            self.open -= 1
            self._telemetry.event_streams.dec()

    async def _messages(
        self,
        scope: MutableMapping[str, object],
        tailer: Tailer,
        log_id: str,
        after: int,
        credential_id: str | None,
        opening: bytes,
    ) -> AsyncIterator[bytes]:
        """Iterate over messages until the run ends, the token is not valid any more, or the server stops."""
        yield opening
        caught_up = False  # until then events come from the source, afterwards from the tailer's ring
        woken = asyncio.Event()
        wake = on_loop(woken.set)
        with tailer.watch(log_id, wake) as feed, self._watcher.watch(credential_id, wake) as watched:
            while not tailer.closed:
                woken.clear()
                if watched.refusal is not None:
                    yield encode_problem(watched.refusal, scope)
                    return
                entries: Sequence[Entry] | None = feed.since(after) if caught_up else None
                if entries is None:
                    try:
                        entries = await anyio.to_thread.run_sync(tailer.source.after, log_id, after, PAGE_SIZE)
                    except DatabaseUnavailable:  # the database's own log and metrics say so
                        yield PING
                        await asyncio.sleep(OUTAGE_SECONDS)
                        continue
                    caught_up = not entries
                if entries:
                    after = entries[-1].seq
                    yield b"".join(entry.chunk for entry in entries)
                elif feed.head is not None and feed.head.state in TERMINAL and feed.head.seq <= after:
                    yield f"event: end\ndata: {json.dumps({'state': feed.head.state})}\n\n".encode()
                    return
                else:
                    try:
                        async with asyncio.timeout(self.limits.ping_seconds):
                            await woken.wait()
                    except TimeoutError:
                        yield PING
