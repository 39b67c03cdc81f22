"""Events of runs, page by page or as they happen."""

import json
from collections.abc import Iterator
from typing import Final

import httpx

from ludus.client.errors import Busy, ServerUnreachable
from ludus.client.patience import Patience
from ludus.client.streams import server_sent
from ludus.client.transport import Transport, segment, unreachable
from ludus.schemas import Event

STREAM_SILENCE_SECONDS: Final = 45.0
"""An event stream that says nothing for so long (the server pings every 15 s) is taken for dead."""


class Events(Transport):
    """Requests about events."""

    def list_events(self, run: str, after: int = 0) -> Iterator[Event]:
        """Iterate over the events that exist now, those with a sequence number above `after`."""
        while True:
            page = self._get(f"/v1/runs/{segment(run)}/events", {"after_seq": str(after)})
            yield from self._all(Event, page, "events")
            if page.get("next_after_seq") is None:
                return
            after = page["next_after_seq"]

    def follow_events(self, run: str, after: int = 0) -> Iterator[Event]:
        """Iterate over events as they happen, from the one after `after` to the run's last.

        Reconnects where a connection breaks, and goes on exactly after the last event it gave out. Raises ProblemAnswer
        when the token holds no longer.
        """
        patience = Patience()
        while True:
            try:
                for event in self._stream_once(run, after):
                    if event is None:
                        return
                    patience.reset()
                    after = event.seq
                    yield event
            except (ServerUnreachable, Busy) as error:
                patience.bear(error)

    def _stream_once(self, run: str, after: int) -> Iterator[Event | None]:
        """Yield events of one connection, and None where the server says that the run has ended."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        limits = httpx.Timeout(self._http.timeout.connect, read=STREAM_SILENCE_SECONDS)
        path = f"/v1/runs/{segment(run)}/events:stream"
        try:
            with self._http.stream("GET", path, headers=headers, timeout=limits) as answer:
                if answer.status_code == httpx.codes.NO_CONTENT:
                    yield None
                    return
                self._raise_for_problem(answer)
                for kind, data in server_sent(answer.iter_lines()):
                    if kind == "end":
                        yield None
                        return
                    if kind == "error":
                        raise self._problem_of(data, httpx.codes.UNAUTHORIZED)
                    yield self._read(Event, json.loads(data))
        except httpx.TransportError as error:
            raise unreachable(self.server, error) from error
        raise ServerUnreachable(self.server, "the event stream ended early")
