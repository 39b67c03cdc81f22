"""The edge reader (`python -m worker.collectors.edge.reader`): the process of an attempt that edge collectors stream
to.

Its learner sees a collector for each place, so nothing that the learner does costs it a copy: segments are checked and
written into the shared arena here. One event loop, no other threads but gRPC's.
"""

import asyncio
import hashlib
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog

from ludus.collector import commands, messages
from ludus.collector.carriers.frames import BadFrame, FrameAssembler
from ludus.collector.channel import Channel, ChannelClosedError
from ludus.collector.messages import EDGE_VERSION, Kind, read
from ludus.collector.process import bind, run
from ludus.collector.service import make_server
from ludus.collector.settings import CollectorSettings
from ludus.http2.calls import EOF, StreamCall
from ludus.logging import bind_process, redirect_output
from ludus.protocol.options import COLLECTOR_SERVICE, REASON_METADATA, TICKET_METADATA
from ludus.protocol.tickets import TicketChecker, TicketExpired, TicketInvalid
from worker.collectors.edge.checks import Violation, read_message
from worker.collectors.edge.place import BehaviorMemory, Place

log = structlog.get_logger()

METHOD = f"{COLLECTOR_SERVICE}Collect"
INTRODUCTION_SECONDS = 10.0
MOST_NAME = 200
"""Characters of a host's name that are kept."""


class EdgeReader(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Serves Collect, with the places of one attempt."""

    def __init__(self, channel: Channel, settings: CollectorSettings, generation: int) -> None:
        self.settings = settings
        key = settings.ticket_key
        self._tickets = None if key is None else TicketChecker(key, settings.run_id, settings.attempt, generation)
        self.port = 0
        self.done = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._memory: dict[int, BehaviorMemory] = {}
        self._places: dict[int, Place] = {}
        self._handler = grpc.stream_stream_rpc_method_handler(self._collect)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of Collect."""
        return self._handler if handler_call_details.method == METHOD else None

    def readable(self) -> None:
        """Open the places that the pool sends."""
        try:
            for frame in self._channel.receive():
                message = read(frame)
                assert isinstance(message, commands.OpenPlace), "the pool sends nothing else"
                (fd,) = frame.descriptors
                channel = Channel(socket.socket(fileno=fd))
                self._places[message.index] = Place(message, channel, self._memory, lambda: self.port, self._forget)
        except ChannelClosedError:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self.done.set_result(None)

    def _forget(self, place: Place) -> None:
        if self._places.get(place.index) is place:
            del self._places[place.index]

    async def _collect(self, _: None, context: StreamCall) -> None:
        try:
            introduction, frames = await self._introduced(context)
            identity = hashlib.sha256(introduction.session_id.encode()).hexdigest()
            place = self._place_for(identity)
            taken = messages.PlaceTaken(identity, introduction.host[:MOST_NAME], str(context.peer()))
            log.info("edge_collector_joined", index=place.index, host=taken.host, peer=taken.peer)
            await place.serve(context, taken, frames)
        except Violation as error:
            log.warning("edge_collector_refused", code=error.code, reason=str(error), peer=context.peer())
            await context.abort(
                _STATUS.get(error.code, grpc.StatusCode.ABORTED), str(error), ((REASON_METADATA, error.code),)
            )

    async def _introduced(self, context: StreamCall) -> tuple[messages.Introduction, FrameAssembler]:
        """Check the ticket, and return the first frame. Raises Violation."""
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        ticket = str(metadata.get(TICKET_METADATA, ""))
        self._check_ticket(ticket)  # before anything is read
        frames = FrameAssembler()
        try:
            async with asyncio.timeout(INTRODUCTION_SECONDS):
                while True:
                    message = await context.read()
                    if message is EOF:
                        raise Violation("unexpected_message", "the stream ended before the introduction")
                    frame = frames.take(message)
                    if frame is not None:
                        break
        except TimeoutError:
            raise Violation("hello_timeout", f"no introduction within {INTRODUCTION_SECONDS:.0f} s") from None
        except BadFrame as error:
            raise Violation("malformed_message", str(error)) from None
        introduction = read_message(frame)
        if frame.kind != Kind.MESSAGE or not isinstance(introduction, messages.Introduction):
            raise Violation("unexpected_message", "the first frame of a collector is its introduction")
        if introduction.version != EDGE_VERSION:
            raise Violation(
                "protocol_version",
                f"this run speaks version {EDGE_VERSION} of the edge collectors' protocol, not {introduction.version}: "
                "install the same version of ludus on both machines",
            )
        self._check_ticket(ticket, introduction.session_id)
        return introduction, frames

    def _check_ticket(self, ticket: str, session_id: str | None = None) -> None:
        """Check a ticket; with a session id, take it for the collector that has this one. Raises Violation."""
        if self._tickets is None:
            return
        now = time.time()
        try:
            claims = self._tickets.read(ticket, (self.port,), now)
            if session_id is not None:
                self._tickets.spend(ticket, claims, session_id, now)
        except TicketExpired as error:
            raise Violation("ticket_expired", str(error)) from None
        except TicketInvalid as error:
            raise Violation("bad_ticket", str(error)) from None

    def _place_for(self, identity: str) -> Place:
        """Return a free place: the collector's former one, else one that none had, else any. Raises Violation."""
        for place in list(self._places.values()):
            if place.taken_by == identity:
                place.end()  # its collector lost the connection, and is back
        free = [place for place in self._places.values() if place.taken_by is None]
        if not free:
            taken = sum(place.taken_by is not None for place in self._places.values())
            raise Violation(
                "places_taken", f"{taken} of {self.settings.edge_places} places for edge collectors are taken"
            )
        return min(free, key=lambda place: (place.former != identity, bool(place.former), place.index))


_STATUS = {
    "places_taken": grpc.StatusCode.UNAVAILABLE,
    "collector_silent": grpc.StatusCode.UNAVAILABLE,
    "ticket_expired": grpc.StatusCode.UNAUTHENTICATED,
    "bad_ticket": grpc.StatusCode.UNAUTHENTICATED,
    "protocol_version": grpc.StatusCode.FAILED_PRECONDITION,
}
"""Statuses of refusals; every other one is a broken contract, after which the collector may begin again."""


async def serve(channel: Channel, start: commands.Settings) -> None:
    """Serve until the learner is gone."""
    settings = CollectorSettings.from_json(start.settings)
    if settings.log_path is not None:
        redirect_output(Path(settings.log_path))
    bind_process(run_id=settings.run_id, attempt=settings.attempt)
    loop = asyncio.get_running_loop()
    reader = EdgeReader(channel, settings, start.generation)
    server = make_server(settings.max_message_bytes, settings.bind_host, tls=settings.tls is not None)
    server.add_generic_rpc_handlers((reader,))
    reader.port = bind(server, settings, start.index)
    await server.start()
    loop.add_reader(channel.fileno(), reader.readable)
    channel.send(Kind.MESSAGE, messages.Listening(reader.port).pack())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None)  # the learner decides; it has been signalled too
    living = loop.create_task(_say_alive(channel))
    await reader.done
    living.cancel()
    await server.stop(1.0)


async def _say_alive(channel: Channel) -> None:
    """Tell the pool once a second that this process is not frozen."""
    with suppress(ChannelClosedError):  # reading finds out
        while True:
            channel.send(Kind.MESSAGE, messages.Alive().pack())
            channel.flush()
            await asyncio.sleep(messages.ALIVE_SECONDS)


def main() -> None:
    """Run the edge reader."""
    run("edge-reader", lambda channel, start, _: serve(channel, start))


if __name__ == "__main__":
    main()
