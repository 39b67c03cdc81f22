"""One life of a game in its run: forwards its calls to a collector, and holds the pending one while there is none.

A game makes one call at a time and waits for the reply, without a limit. So whatever happens to the run meanwhile
(its collector dies, it is paused, its server is upgraded), the bridge joins again, shows the new collector the game's
first two calls, and gives the reply to the second one, a RESET, to the game as the reply to the call that it waits in.
The game begins new episodes and notices nothing else. What it will not say again, its behaviors, is added to the first
message in which they have agents.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio

from ludus.games import doctor
from ludus.games.engine import EngineOverrides
from ludus.games.unity.hook import Tap
from ludus.games.unity.messages import (
    GOODBYE,
    Outline,
    announced,
    announcing,
    goes_on,
    outline,
    pictures,
    populated,
    with_frames,
)
from ludus.games.voice import Tell
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import (
    CLIENT_METADATA,
    CLOSE_METADATA,
    EXCHANGE,
    INCARNATION_METADATA,
    PARKS_METADATA,
    REASON_METADATA,
    TICKET_METADATA,
)
from ludus.sdk.errors import Failure, SessionRefused, SimulatorError
from ludus.sdk.join import Joiner, Place, Report, RunEnd, Target, client_name

CLIENT: Final = "ludus-unity"
GOODBYE_SECONDS: Final = 5.0
"""How long telling the collector that a game has gone may take."""


class Conversation:
    """What a game says from its first call to its goodbye, and the session that it has at a collector."""

    def __init__(
        self,
        target: Target,
        tell: Tell,
        about_run: Report,
        engine: EngineOverrides | None = None,
        *,
        no_graphics: bool = False,
        parks: bool = False,
        tap: Tap | None = None,
    ) -> None:
        """Begin with a game's first call. `parks`: people may stop the game in the middle, for as long as they like."""
        self.calls = 0
        """Calls that the game has made."""
        self.replied_at = time.monotonic()
        """When the last reply was given (clock: monotonic)."""
        self.outcome: RunEnd | SimulatorError | None = None
        """How it ended, if not by the game."""
        self.over = False
        """Whether the game gets goodbyes only."""
        self.said_goodbye = False
        """Whether the game ended it."""
        self._joiner = Joiner(target, about_run, client_name(CLIENT))
        self._joiner.open()
        self._diagnose = tell
        self._engine = engine or EngineOverrides()
        self._no_graphics = no_graphics
        self._parks = parks
        self._tap = tap
        self._place: Place | None = None
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._introduction = b""
        """The game's first call."""
        self._readiness = b""
        """The game's second call."""
        self._announced: dict[str, bytes] = {}
        """Every behavior that the game has announced: key -> parameters."""
        self._owed: set[str] = set()
        """Behaviors that the present collector has not heard of yet."""
        self._work: asyncio.Task[bytes] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._warned_of_size = False

    @property
    def busy(self) -> bool:
        """Whether the game waits for a reply."""
        return self._work is not None

    @property
    def idle_seconds(self) -> float:
        """How long the game has been at work on its own; 0 while it waits for us."""
        return 0.0 if self.busy else time.monotonic() - self.replied_at

    async def answer(self, request: bytes, top: Outline | None = None) -> bytes:
        """Return the reply to the game's next call, however long the run takes for it.

        `top` is the call's outline, from whoever has it already.
        """
        top = top or outline(request)
        if top.closes:
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
        """End the conversation: the collector is told that the game has gone; a pending call gets a goodbye."""
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
        if self._place is not None:
            # Also after a call that was broken off: the collector does not hear of that if it has replied, or if the
            # call has not reached it.
            if not isinstance(self.outcome, SessionRefused):
                with suppress(grpc.aio.AioRpcError, TimeoutError):
                    await asyncio.wait_for(self._exchange(self._place, GOODBYE), GOODBYE_SECONDS)
            await self._give_up_place()
        await self._joiner.close()

    async def _serve(self, request: bytes, top: Outline) -> bytes:
        """Return what the game shall hear; note how the conversation ended if it has."""
        self._remember(request, top)
        try:
            if self._tap is not None:
                self._tap.hear(request, top)
            while True:
                outcome = await self._attempt(request, top)
                if isinstance(outcome, bytes):
                    return self._finished(outcome)
                if isinstance(outcome, RunEnd):
                    self.outcome = outcome
                    break
                await self._joiner.back_off(outcome)
        except SimulatorError as error:
            self.outcome = error
        self.over = True
        return GOODBYE

    async def _attempt(self, request: bytes, top: Outline) -> bytes | RunEnd | Failure:
        """Take one call to the collector; a new one is caught up with first."""
        if self._place is None:
            found = await self._joiner.find()
            if isinstance(found, RunEnd):
                return found
            reply = await self._catch_up(found)
        elif self.calls == 2:
            reply = await self._make_ready(self._place)
        else:
            reply = await self._tell(self._place, self._with_announcements(request, top))
        if not isinstance(reply, bytes):
            await self._give_up_place()
        return reply

    async def _catch_up(self, place: Place) -> bytes | RunEnd | Failure:
        """Make the calls that the game will not make again; return the reply to the last of them."""
        assignment = place.assignment
        self._place = place
        self._owed = set(self._announced)
        self._metadata = (
            (TICKET_METADATA, assignment.ticket),
            (INCARNATION_METADATA, self._joiner.target.incarnation),
            (CLIENT_METADATA, client_name(CLIENT)),
            *(((PARKS_METADATA, "1"),) if self._parks else ()),
        )
        reply = await self._tell(place, self._introduction)
        if not isinstance(reply, bytes):
            return reply
        place.welcomed()
        number = assignment.simulator_number
        self._joiner.notice(f"connected to run {assignment.run_id} as simulator {number}", again=True)
        return reply if self.calls == 1 else await self._make_ready(place)

    async def _make_ready(self, place: Place) -> bytes | RunEnd | Failure:
        """Make the game's second call, which is answered when the run is ready; what was typed here wins."""
        reply = await self._tell(place, self._readiness)
        if isinstance(reply, bytes) and self._engine:
            return with_frames(reply, self._engine.frames)
        return reply

    async def _tell(self, place: Place, message: bytes) -> bytes | RunEnd | Failure:
        """Make one call to the collector.

        Raises SimulatorError where joining again would end the same way: SessionRefused if the collector says so.
        """
        call = self._exchange(place, message)
        try:
            reply: bytes = await call
        except grpc.aio.AioRpcError as error:
            if _too_large(error):
                problem = doctor.message_too_large(error.details() or "")
                raise SimulatorError(problem.code, problem.sentence) from None
            return place.explain(error)
        if goes_on(reply):
            return reply
        last_words: Any = dict(await call.trailing_metadata() or ())
        close = pb.Close.FromString(last_words.get(CLOSE_METADATA, b""))
        if not close.code:
            return Failure("closed", f"{place.address} ended the session without saying why", permanent=False)
        return self._joiner.judge(close)

    def _exchange(self, place: Place, message: bytes) -> Any:
        exchange: Any = place.channel.unary_unary
        # Without serializers gRPC hands the bytes through.
        return exchange(EXCHANGE)(message, metadata=self._metadata)

    async def _give_up_place(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            await place.close()

    def _remember(self, request: bytes, top: Outline) -> None:
        """Keep what the game will not say again."""
        if self.calls == 1:
            self._introduction = request
        elif self.calls == 2:
            self._readiness = request
        elif top.initialization is not None:
            found = announced(request, top)
            self._announced |= found
            self._owed -= found.keys()
            if self._no_graphics:
                for behavior, cameras in pictures(request).items():
                    if behavior in found:
                        self._diagnose(doctor.cameras_without_graphics(behavior, cameras))

    def _with_announcements(self, request: bytes, top: Outline) -> bytes:
        """Add the behaviors that the collector has not heard of, as far as they have agents in this message."""
        if not self._owed:
            return request
        heard = self._owed.intersection(populated(request, top))
        self._owed -= heard
        return announcing(request, [self._announced[name] for name in sorted(heard)]) if heard else request

    def _finished(self, reply: bytes) -> bytes:
        """Return the reply as the game gets it. In the first one it reads no side channels."""
        if self._tap is not None and self.calls > 1:
            reply = self._tap.add(reply)
        if len(reply) > doctor.UNITY_RECEIVES_BYTES and not self._warned_of_size:
            self._warned_of_size = True
            self._diagnose(doctor.reply_too_large(len(reply)))
        return reply


def _too_large(error: grpc.aio.AioRpcError) -> bool:
    """Whether gRPC itself refused a message for its size."""
    trailing: Any = error.trailing_metadata() or ()
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and REASON_METADATA not in dict(trailing)
