"""One session of a Unity game: forward its calls to a collector, and hold the pending call while there is none.

A game makes one call at a time and waits for the reply, without a limit. So when the run is interrupted
(its collector dies, it is paused, its server is upgraded), the bridge joins again, shows the new collector the game's
first two calls, and gives the reply to the second one, a RESET, to the game as the reply to the call that it waits in.
The game begins new episodes and notices nothing else. The game announces its behaviors only once, so the bridge adds
them to the first message in which they have agents.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from ludus.games import diagnostics
from ludus.games.reporter import Tell
from ludus.games.unity.hook import SideChannelTap
from ludus.games.unity.messages import (
    GOODBYE,
    announced,
    announcing,
    closes,
    goes_on,
    outline,
    pictures,
    populated,
    with_frames,
)
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode
from ludus.protocol.mlagents import outline_pb2 as top_level
from ludus.protocol.options import (
    CLIENT_METADATA,
    CLOSE_METADATA,
    EXCHANGE,
    GAME_RECEIVES_BYTES,
    PARKS_METADATA,
    REASON_METADATA,
    SESSION_ID_METADATA,
    TICKET_METADATA,
)
from ludus.protocol.side_channels import EngineOverrides
from ludus.sdk.errors import Failure, SessionRefused, SimulatorError
from ludus.sdk.join import CollectorEndpoint, JoinClient, Report, RunEnd, Target, client_name

Exchange: TypeAlias = Callable[[bytes, tuple[tuple[str, str], ...]], Awaitable[tuple[bytes, Mapping[str, Any]]]]
"""Sends one call with its metadata to a collector; returns the reply, and its trailing metadata."""
CLIENT: Final = "ludus-unity"
GOODBYE_SECONDS: Final = 5.0
"""Time-out of the last message to the collector, after a game has gone."""


class BridgeSession:
    """The calls of a game from the first to the last one, and its session at a collector."""

    def __init__(
        self,
        target: Target,
        tell: Tell,
        log_of_run: Report,
        engine: EngineOverrides | None = None,
        *,
        no_graphics: bool = False,
        parks: bool = False,
        tap: SideChannelTap | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """Begin with a game's first call.

        `parks`: people may stop the game in the middle, for as long as they like. `exchange`: of the collector of
        this process, to which `target` leads; None: calls go by a connection.
        """
        self.calls = 0
        self.replied_at = time.monotonic()
        """When the last reply was given (clock: monotonic)."""
        self.outcome: RunEnd | SimulatorError | None = None
        """The end of the session, unless the game ended it."""
        self.over = False
        """Whether every further call is answered with GOODBYE."""
        self.said_goodbye = False
        """Whether the game ended the session."""
        self._join_client = JoinClient(target, log_of_run, client_name(CLIENT))
        self._join_client.open()
        self._diagnose = tell
        self._engine = engine or EngineOverrides()
        self._no_graphics = no_graphics
        self._parks = parks
        self._tap = tap
        self._exchange_here = exchange
        self._endpoint: CollectorEndpoint | None = None
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._introduction = b""
        """The game's first call."""
        self._readiness = b""
        """The game's second call."""
        self._announced: dict[str, bytes] = {}
        """Every behavior that the game has announced: key -> parameters."""
        self._owed: set[str] = set()
        """Behaviors that the present collector does not know yet."""
        self._work: asyncio.Task[bytes] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._warned_of_size = False

    @property
    def busy(self) -> bool:
        """Whether the game waits for a reply."""
        return self._work is not None

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last reply to the game; 0 while it waits for a reply."""
        return 0.0 if self.busy else time.monotonic() - self.replied_at

    async def answer(self, request: bytes, top: top_level.Outline | None = None) -> bytes:
        """Return the reply to the game's next call, however long the run takes for it.

        `top` is the call's outline if the caller has it.
        """
        top = top or outline(request)
        if closes(top):
            self.said_goodbye = True
            await self.leave()
        if self.over or self.busy:
            return GOODBYE
        self.calls += 1
        self._work = asyncio.ensure_future(self._serve(request, top))
        try:
            return await self._work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the game has gone, and gRPC ends its call
                self._leave_soon()
                raise
            return GOODBYE
        finally:
            self._work = None
            self.replied_at = time.monotonic()

    async def leave(self) -> None:
        """End the session: report the end to the collector, answer a pending call with GOODBYE."""
        await asyncio.shield(self._leave_soon())

    def _leave_soon(self) -> "asyncio.Task[None]":
        self.over = True
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._leave())
        return self._leaving

    async def _leave(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})
        if self._endpoint is not None:
            # Also after a call that was broken off: the collector does not hear of that if it has replied, or if the
            # call has not reached it.
            if not isinstance(self.outcome, SessionRefused):
                with suppress(grpc.aio.AioRpcError, TimeoutError):
                    await asyncio.wait_for(self._exchange(self._endpoint, GOODBYE), GOODBYE_SECONDS)
            await self._close_endpoint()
        await self._join_client.close()

    async def _serve(self, request: bytes, top: top_level.Outline) -> bytes:
        """Return the reply for the game; note how the session ended if it has."""
        self._remember(request, top)
        try:
            if self._tap is not None:
                self._tap.receive(top)
            while True:
                outcome = await self._attempt(request, top)
                if isinstance(outcome, bytes):
                    return self._finished(outcome)
                if isinstance(outcome, RunEnd):
                    self.outcome = outcome
                    break
                await self._join_client.back_off(outcome)
        except SimulatorError as error:
            self.outcome = error
        self.over = True
        return GOODBYE

    async def _attempt(self, request: bytes, top: top_level.Outline) -> bytes | RunEnd | Failure:
        """Send one call to the collector, after the first two calls if the collector is new."""
        if self._endpoint is None:  # no collector yet, or its session ended
            outcome = await self._join_client.find()
            if isinstance(outcome, RunEnd):
                return outcome
            reply = await self._catch_up(outcome)
        elif self.calls == 2:
            reply = await self._make_ready(self._endpoint)
        else:
            reply = await self._tell(self._endpoint, self._with_announcements(request, top))
        if not isinstance(reply, bytes):
            await self._close_endpoint()
        return reply

    async def _catch_up(self, endpoint: CollectorEndpoint) -> bytes | RunEnd | Failure:
        """Send a new collector the calls that the game makes only once; return the reply to the last of them."""
        assignment = endpoint.assignment
        self._endpoint = endpoint
        self._owed = set(self._announced)
        self._metadata = (
            (TICKET_METADATA, assignment.ticket),
            (SESSION_ID_METADATA, self._join_client.target.session_id),
            (CLIENT_METADATA, client_name(CLIENT)),
            *(((PARKS_METADATA, "1"),) if self._parks else ()),
        )
        reply = await self._tell(endpoint, self._introduction)
        if not isinstance(reply, bytes):
            return reply
        endpoint.welcomed()
        number = assignment.simulator_number
        self._join_client.report_once(f"connected to run {assignment.run_id} as simulator {number}", again=True)
        return reply if self.calls == 1 else await self._make_ready(endpoint)

    async def _make_ready(self, endpoint: CollectorEndpoint) -> bytes | RunEnd | Failure:
        """Send the game's second call, answered when the run is ready. Local options override the reply."""
        reply = await self._tell(endpoint, self._readiness)
        if isinstance(reply, bytes) and self._engine:
            return with_frames(reply, self._engine.frames)
        return reply

    async def _tell(self, endpoint: CollectorEndpoint, message: bytes) -> bytes | RunEnd | Failure:
        """Send one call to the collector.

        Raises SimulatorError where joining again would end in the same way, SessionRefused if the collector says so.
        """
        try:
            reply, metadata = await self._exchange(endpoint, message)
        except grpc.aio.AioRpcError as error:
            # gRPC itself refused the message for its size.
            trailing: Any = error.trailing_metadata() or ()
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and REASON_METADATA not in dict(trailing):
                problem = diagnostics.failure(CloseCode.MESSAGE_TOO_LARGE, details=error.details())
                raise SimulatorError(problem.code, problem.sentence) from None
            return endpoint.explain(error)
        if goes_on(reply):
            return reply
        close = pb.Close.FromString(metadata.get(CLOSE_METADATA, b""))
        if not close.code:
            return Failure("closed", f"{endpoint.address} ended the session without a reason", permanent=False)
        return self._join_client.interpret_close(close)

    async def _exchange(self, endpoint: CollectorEndpoint, message: bytes) -> tuple[bytes, Mapping[str, Any]]:
        """Return the reply, and its trailing metadata if it ends the session."""
        if self._exchange_here is not None:
            return await self._exchange_here(message, self._metadata)
        exchange: Any = endpoint.channel.unary_unary
        # Without serializers gRPC hands the bytes through.
        call = exchange(EXCHANGE)(message, metadata=self._metadata)
        reply: bytes = await call
        return reply, {} if goes_on(reply) else dict(await call.trailing_metadata() or ())

    async def _close_endpoint(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.close()

    def _remember(self, request: bytes, top: top_level.Outline) -> None:
        """Keep the messages that the game sends only once."""
        if self.calls == 1:
            self._introduction = request
        elif self.calls == 2:
            self._readiness = request
        elif behaviors := announced(top):
            self._announced |= behaviors
            self._owed -= behaviors.keys()
            cameras = pictures(request) if self._no_graphics else {}
            for name in behaviors.keys() & cameras.keys():
                problem = diagnostics.failure("cameras_without_graphics", behavior=name, cameras=cameras[name])
                self._diagnose(problem)

    def _with_announcements(self, request: bytes, top: top_level.Outline) -> bytes:
        """Add the behaviors that the collector does not know and that have agents in this message."""
        if not self._owed:
            return request
        heard = self._owed.intersection(populated(top))
        self._owed -= heard
        return announcing(request, [self._announced[name] for name in sorted(heard)]) if heard else request

    def _finished(self, reply: bytes) -> bytes:
        """Return the reply with the hook's frames. Games read no side channels in their first reply."""
        if self._tap is not None and self.calls > 1:
            reply = self._tap.add(reply)
        limit = GAME_RECEIVES_BYTES
        if len(reply) > limit and not self._warned_of_size:
            self._warned_of_size = True
            self._diagnose(diagnostics.failure("reply_too_large", size=len(reply), limit=limit))
        return reply
