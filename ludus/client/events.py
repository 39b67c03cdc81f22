"""Events of runs: those that exist, or each as it happens."""

import json
from collections.abc import Iterator
from typing import Final

import httpx

from ludus.client.backoff import ServerBackoff
from ludus.client.errors import Busy, ServerUnreachable
from ludus.client.transport import Resource, segment
from ludus.schemas import Event

STREAM_SILENCE_SECONDS: Final = 45.0
"""Longest silence of an event stream: the server sends a ping every 15 s."""


class Events(Resource):
    """Requests about events."""

    def list(self, run: str, after: int = 0) -> Iterator[Event]:
        """Iterate over the existing events with a sequence number above `after`."""
        while True:
            page = self._transport.document(f"/v1/runs/{segment(run)}/events", {"after_seq": str(after)})
            yield from self._transport.read_all(Event, page, "events")
            if page.get("next_after_seq") is None:
                return
            after = page["next_after_seq"]

    def follow(self, run: str, after: int = 0) -> Iterator[Event]:
        """Iterate over events as they happen, from the one after `after` to the run's last.

        Reconnects after a broken connection and continues with the event after the last one that it yielded. Raises
        ProblemAnswer when the token is revoked or expires.
        """
        backoff = ServerBackoff()
        while True:
            try:
                for event in self._stream(run, after):
                    if event is None:
                        return
                    backoff.reset()
                    after = event.seq
                    yield event
            except (ServerUnreachable, Busy) as error:
                backoff.wait(error)

    def _stream(self, run: str, after: int) -> Iterator[Event | None]:
        """Yield the events of one connection, and None where the server says that the run has ended."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        path = f"/v1/runs/{segment(run)}/events:stream"
        with self._transport.stream(path, headers, silence_seconds=STREAM_SILENCE_SECONDS) as answer:
            if answer.status_code == httpx.codes.NO_CONTENT:
                yield None
                return
            for kind, data in server_sent(answer.iter_lines()):
                if kind == "end":
                    yield None
                    return
                if kind == "error":
                    raise self._transport.problem(data, httpx.codes.UNAUTHORIZED)
                yield self._transport.read(Event, json.loads(data))
        raise ServerUnreachable(self._transport.server, "the event stream ended early")


def server_sent(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Parse a stream of server-sent events into (event, data). Comments, the pings of the server, are skipped."""
    kind, data = "message", list[str]()
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "message", []
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
