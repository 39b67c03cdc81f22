"""Events of runs: those that exist, or each as it happens, of one run or of all runs of the project."""

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

import httpx2

from ludus.client.backoff import ServerBackoff
from ludus.client.errors import Busy, ServerUnreachable
from ludus.client.transport import Resource, route
from ludus.schemas import Event, ProjectEvent

STREAM_SILENCE_SECONDS: Final = 45.0
"""Longest silence of an event stream: the server sends a ping every 15 s."""
REMEMBERED_RUNS: Final = 10_000
"""Runs of which `follow_project` knows the newest event: after a reconnection some events come twice."""


class Events(Resource):
    """Requests about events."""

    def list(self, run: str, after: int = 0) -> Iterator[Event]:
        """Iterate over the existing events with a sequence number above `after`."""
        return self._pages(Event, route("runs", run, "events"), after_seq=after)

    def follow(self, run: str, after: int = 0) -> Iterator[Event]:
        """Iterate over events as they happen, from the one after `after` to the run's last.

        Reconnects after a broken connection and continues with the event after the last one that it yielded. Raises
        ProblemAnswer when the token is revoked or expires.
        """
        path = route("runs", run, "events") + ":stream"
        backoff = ServerBackoff()
        while True:
            try:
                for message in self._messages(path, str(after)):
                    if message.kind == "end":
                        return
                    event = self._transport.read(Event, json.loads(message.data))
                    backoff.reset()
                    after = event.seq
                    yield event
            except (ServerUnreachable, Busy) as error:
                backoff.wait(error)

    def follow_project(self) -> Iterator[ProjectEvent]:
        """Iterate over the events of all runs of the project as they happen, from now on; it has no end.

        A run's events come in their order, each once. Reconnects after a broken connection and continues with what
        happened meanwhile; where that was too much for the server, some events are left out. Raises ProblemAnswer when
        the token is revoked or expires.
        """
        backoff = ServerBackoff()
        position = ""
        newest: dict[str, int] = {}
        while True:
            try:
                for message in self._messages("/v1/events:stream", position):
                    backoff.reset()
                    position = message.id
                    if message.kind != "message" or not message.data:
                        continue
                    event = self._transport.read(ProjectEvent, json.loads(message.data))
                    before = newest.pop(event.run_id, 0)
                    newest[event.run_id] = max(before, event.seq)  # the last place is that of the newest event
                    if len(newest) > REMEMBERED_RUNS:
                        del newest[next(iter(newest))]
                    if event.seq > before:
                        yield event
            except (ServerUnreachable, Busy) as error:
                backoff.wait(error)

    def _messages(self, path: str, last_id: str) -> Iterator["ServerSent"]:
        """Yield the messages of one connection, after that with the id `last_id`; `end` where there are none left.

        Raises ServerUnreachable when the connection ends.
        """
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
        with self._transport.stream(path, headers, silence_seconds=STREAM_SILENCE_SECONDS) as answer:
            if answer.status_code == httpx2.codes.NO_CONTENT:
                yield ServerSent("end", "", last_id)
                return
            for message in server_sent(answer.iter_lines()):
                if message.kind == "error":
                    raise self._transport.problem(message.data, httpx2.codes.UNAUTHORIZED)
                yield message
        raise ServerUnreachable(self._transport.server, "the event stream ended early")


class ServerSent(NamedTuple):
    """A message of a stream of server-sent events."""

    kind: str
    """`message` unless the server says otherwise."""
    data: str
    """Empty where the server only sends an id."""
    id: str
    """Of this message, or of the newest one before it that had one."""


def server_sent(lines: Iterator[str]) -> Iterator[ServerSent]:
    """Parse a stream of server-sent events. Comments, the pings of the server, are skipped."""
    kind, data, last_id, named = "message", list[str](), "", False
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data or named:
                yield ServerSent(kind, "\n".join(data), last_id)
            kind, data, named = "message", [], False
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            last_id, named = value, True
