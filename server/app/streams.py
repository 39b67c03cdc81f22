"""Server-sent events: a run's log as it grows (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Each message carries the event's sequence number as its id, so a client that reconnects with `Last-Event-ID` goes on
exactly where it was. A comment is sent when nothing happens, so that proxies and clients know that the stream lives.
After a run's last event comes the message `end`, and the stream closes; where the token holds no longer, it is `error`
with a problem.

A client that doesn't take what it is sent within the time-out is dropped. (A vanished one is noticed in no other way.)
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.access.tokens.vigil import TokenVigil
from server.app.tailer import Entry, EventSource, Feed, Tailer
from server.app.telemetry import HttpTelemetry
from server.kit.http.errors import TooManyStreams, problem_response
from server.kit.waking import on_loop
from server.runs.states import TERMINAL

log = structlog.get_logger(__name__)

MEDIA_TYPE = "text/event-stream"
PAGE_SIZE = 200
"""Events that a client takes from the database at once, to catch up."""


@dataclass(frozen=True)
class StreamLimits:
    """How event streams treat their clients."""

    clients: int = 1000
    """Open streams in this process."""
    ping_seconds: float = 15.0
    send_seconds: float = 20.0
    """A client that takes nothing for so long is dropped."""


def encode_event(seq: int, data: Mapping[str, object]) -> bytes:
    """Encode one event as a message. JSON has no raw line breaks, so one `data:` line is enough."""
    return f"id: {seq}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


class EventStreams:
    """Opens streams, up to a limit."""

    def __init__(
        self,
        tailer: Tailer,
        source: EventSource,
        vigil: TokenVigil,
        telemetry: HttpTelemetry,
        limits: StreamLimits | None = None,
    ) -> None:
        self.tailer = tailer
        self.vigil = vigil
        self.source = source
        self.telemetry = telemetry
        self.limits = limits or StreamLimits()
        self.open = 0
        """Streams that are open now. Only touched on the event loop."""

    def stream(self, run_id: str, after: int, token_id: str | None) -> "EventStream":
        """Answer with the events of a run from the one after `after`, while the token holds. Raises TooManyStreams."""
        if self.open >= self.limits.clients:
            raise TooManyStreams(self.limits.clients)
        return EventStream(self, run_id, after, token_id)


class EventStream(Response):
    """The answer: runs on the event loop, and reads the database in a thread and only to catch up."""

    media_type = MEDIA_TYPE

    def __init__(self, streams: EventStreams, run_id: str, after: int, token_id: str | None) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._streams = streams
        self._run_id = run_id
        self._after = after
        self._token_id = token_id
        self._caught_up = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the run ends, the token does, the client leaves or stalls, or the server stops."""
        self._streams.open += 1
        self._streams.telemetry.event_streams.inc()
        sender = asyncio.create_task(self._send_all(scope, send))
        leaver = asyncio.create_task(_until_disconnect(receive))
        try:
            await asyncio.wait({sender, leaver}, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        except TimeoutError:
            self._streams.telemetry.dropped_streams.inc()
            log.info("event_stream_dropped", run_id=self._run_id, reason="the client takes nothing")
        finally:
            self._streams.open -= 1
            self._streams.telemetry.event_streams.dec()
            for task in (sender, leaver):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                    await task

    async def _send_all(self, scope: Scope, send: Send) -> None:
        limit = self._streams.limits.send_seconds
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        async with asyncio.timeout(limit):
            await send(start)
        async for chunk in self._chunks(scope):
            async with asyncio.timeout(limit):  # unlike `wait_for`, without a task for each message of each client
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        async with asyncio.timeout(limit):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self, scope: Scope) -> AsyncIterator[bytes]:
        yield b": hello\n\n"
        tailer, vigil = self._streams.tailer, self._streams.vigil
        woken = asyncio.Event()
        wake = on_loop(woken.set)
        with tailer.watch(self._run_id, wake) as feed, vigil.watch(self._token_id, wake) as stay:
            while not tailer.closed:
                woken.clear()
                if stay.refusal is not None:
                    yield b"event: error\ndata: " + bytes(problem_response(stay.refusal, scope).body) + b"\n\n"
                    return
                entries = await self._new_entries(feed)
                if entries:
                    self._after = entries[-1].seq
                    yield b"".join(entry.chunk for entry in entries)
                elif feed.head is not None and feed.head.state in TERMINAL and feed.head.seq <= self._after:
                    yield f"event: end\ndata: {json.dumps({'state': feed.head.state})}\n\n".encode()
                    return
                elif not await _within(woken, self._streams.limits.ping_seconds):
                    yield b": ping\n\n"

    async def _new_entries(self, feed: Feed) -> Sequence[Entry]:
        """Return what the client has not had: from the database until it has caught up, then from the ring."""
        ready = feed.since(self._after) if self._caught_up else None
        if ready is not None:
            return ready
        stored = await run_in_threadpool(self._streams.source.after, self._run_id, self._after, PAGE_SIZE)
        self._caught_up = not stored
        return stored


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
