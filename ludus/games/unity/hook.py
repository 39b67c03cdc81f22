"""A hook for your own code between a game and its run: side channels that the run does not use.

The run's own side channels (engine configuration, environment parameters, stats) pass untouched. The others, raw bytes
and float properties, are for your own code.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ludus.games import diagnostics
from ludus.games.unity.messages import with_frames
from ludus.protocol.codes import ProtocolError
from ludus.protocol.mlagents import outline_pb2 as top_level
from ludus.protocol.side_channels import RUNS_CHANNELS, Frame, join, split
from ludus.sdk.errors import SimulatorError

logger = logging.getLogger("ludus.games")


class SideChannelHook(Protocol):
    """Receives the frames of games on channels that the run does not use, and sends frames on them.

    Both methods are called on the event loop that answers all games, so they must return at once. An error ends the
    game, and it is not started again.
    """

    def received(self, worker: int, frame: Frame) -> None:
        """Take a frame of a game, in the order in which they came. `worker` counts builds from 0; the Editor is 0."""

    def pending(self, worker: int) -> Sequence[Frame]:
        """Return frames to send with the reply that the game is about to get, behind those of the run.

        Called for each reply from a game's second one on, the first in which games read side channels. Frames that
        a game does not read because it ends are lost.
        """


@dataclass(frozen=True)
class SideChannelTap:
    """The hook for the games of one worker."""

    hook: SideChannelHook
    worker: int

    def receive(self, top: top_level.Outline) -> None:
        """Pass a game's frames to the hook. Raises SimulatorError if the hook fails."""
        try:
            frames = split(top.unity_output.rl_output.side_channel)
        except ProtocolError:
            return  # the collector reports the error
        try:
            for frame in frames:
                if frame.channel not in RUNS_CHANNELS:
                    self.hook.received(self.worker, frame)
        except Exception as error:  # not our code: its errors are not errors of the call
            raise _failed("received", error) from error

    def add(self, reply: bytes) -> bytes:
        """Add the frames of the hook to a reply. Raises SimulatorError if the hook fails."""
        try:
            frames = list(self.hook.pending(self.worker))
            joined = join(frames)
        except Exception as error:  # as above
            raise _failed("pending", error) from error
        for frame in frames:
            if frame.channel in RUNS_CHANNELS:
                problem = diagnostics.failure(diagnostics.CHANNEL_OF_THE_RUN, channel=frame.channel)
                raise SimulatorError(problem.code, problem.sentence)
        return with_frames(reply, lambda _: joined) if joined else reply


def _failed(method: str, error: Exception) -> SimulatorError:
    logger.error("the hook of side channels failed", exc_info=error)
    problem = diagnostics.failure(diagnostics.HOOK_FAILED, method=method, error=f"{type(error).__name__}: {error}")
    return SimulatorError(problem.code, problem.sentence)
