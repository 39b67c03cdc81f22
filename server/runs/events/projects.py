"""The events of projects as they happen: what the streams over all runs of a project read (ADR 16).

No database gives one order over the events of all runs (ADR 8). So each process numbers what it sees, in one log for
each project and one for all of them, in memory: a look at the runs that have changed finds their new events. A run is
looked at for a while after its last change (`server.runs.events.cursor`). While no client listens, the database is not
read.

The number of an event in such a log means nothing in another process. The id of a message is a position in time: what
had been committed `MARGIN_SECONDS` before it has been sent. A client that reconnects with a position, to any process,
gets the events since then from the database, some of them a second time.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from ludus import schemas
from server.kit.db.database import Database
from server.kit.db.projects import EVERY
from server.kit.http.event_stream import encode_event
from server.kit.http.resources import dump, resource
from server.runs.events.cursor import MARGIN_SECONDS, Look
from server.runs.events.repository import EventRepository, RunHead
from server.runs.events.tailer import Entry, Head
from server.runs.models import Event

LOOK_SECONDS: Final = 0.25
"""Pause between two looks at the database."""
LONGEST_PAUSE_SECONDS: Final = 60.0
"""After a longer pause between two reads (no client, or no database) the logs start again, empty."""
LOG_SIZE: Final = 1024
"""Newest events of a project in memory. A client that is further behind is told to read its lists again."""
REPLAYED: Final = 1000
"""Events that a client gets when it reconnects; if there are more, it is told to read its lists again."""


@dataclass(frozen=True)
class _Log:
    """The newest events of a project, numbered 1, 2, 3, ... without gaps."""

    end: int = 0
    entries: tuple[Entry, ...] = ()

    def plus(self, chunks: Iterable[bytes]) -> Self:
        """Return the log with further events."""
        new = tuple(Entry(seq, chunk) for seq, chunk in enumerate(chunks, self.end + 1))
        return type(self)(self.end + len(new), (self.entries + new)[-LOG_SIZE:])


class ProjectEvents:
    """The logs of projects. An EventSource whose log ids are names of projects, and `*` for all of them.

    Safe to share between threads.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looking = threading.Lock()
        self._last: Look | None = None
        self._logs: dict[str, _Log] = {}

    def heads(self, log_ids: Collection[str]) -> Mapping[str, Head]:
        """Look at the database, and return the ends of the logs."""
        with self._looking:
            self._look()
        return {project: Head(self._logs.get(project, _Log()).end, None) for project in log_ids}

    def after(self, log_id: str, seq: int, limit: int) -> Sequence[Entry]:
        """Return a project's events behind `seq`, at most `limit`; `reset` where the log does not reach back so far."""
        last = self._last
        log = self._logs.get(log_id, _Log())
        if last is not None and log.entries and log.entries[0].seq > seq + 1:
            return [Entry(log.end, _reset(last.position))]
        return [entry for entry in log.entries if entry.seq > seq][:limit]

    def open(self, project: str, position: int | None) -> tuple[int, bytes]:
        """Look at the database; return behind which event of a project's log a stream begins, and its first messages.

        The stream begins now. With the `position` of an earlier one (milliseconds since 1970), the messages are what
        has happened since. They end with the present position, which browsers remember without a message.
        """
        with self._looking:
            last = self._look()
            log = self._logs.setdefault(project, _Log())
        past = b"" if position is None else self._since(project, position)
        return log.end, past + f"id: {last.position}\n\n".encode()

    def _since(self, project: str, position: int) -> bytes:
        """Return messages of a project's events since a position, or `reset` if they are more than REPLAYED.

        They come run by run, and have the same position: a client that breaks off among them gets all of them again.
        """
        since = position / 1000 - MARGIN_SECONDS
        chunks: list[bytes] = []
        with self._database.within(None if project == EVERY else project).read() as session:
            events = EventRepository(session)
            for head in events.with_events_since(since, REPLAYED + 1):
                for event in events.through(head, after=events.last_before(head.run_id, since)):
                    if len(chunks) == REPLAYED:
                        return _reset(position)
                    chunks.append(_encoded(position, head, event))
        return b"".join(chunks)

    def _look(self) -> Look:
        """Append to the logs what has become visible since the last look. The caller holds the lock."""
        last = self._last
        with self._database.read() as session:
            events = EventRepository(session)
            if last is None or time.monotonic() - last.ended > LONGEST_PAUSE_SECONDS:
                look = Look.first(events, events.clock() - MARGIN_SECONDS)
                news: Mapping[str, Sequence[bytes]] = {project: [_reset(look.position)] for project in self._logs}
            else:
                look = last.next(events)
                news = _news(events, look, last)
        for project, chunks in news.items():
            self._logs[project] = self._logs.get(project, _Log()).plus(chunks)
        self._last = look
        return look


def _news(events: EventRepository, look: Look, last: Look) -> Mapping[str, Sequence[bytes]]:
    """Return the messages of the events that the last look did not see, by project, and all of them under EVERY.

    Until the last of them has been sent, a client's position is that of the last look.
    """
    chunks: defaultdict[str, list[bytes]] = defaultdict(list)
    for head in look.new:
        for event in last.events_behind(events, head):
            chunk = _encoded(last.position, head, event)
            chunks[head.project].append(chunk)
            chunks[EVERY].append(chunk)
    return chunks


def _encoded(position: int, head: RunHead, event: Event) -> bytes:
    content = resource(schemas.ProjectEvent, event, run_name=head.name, state=head.state)
    return encode_event(position, dump(content))


def _reset(position: int) -> bytes:
    """Encode the message that tells a client to read its lists again: it may have missed events."""
    return f"id: {position}\nevent: reset\ndata: {{}}\n\n".encode()
