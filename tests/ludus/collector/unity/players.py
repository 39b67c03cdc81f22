"""Players in threads of their own at a real collector, and what became of them at both ends."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from ludus.collector.messages import SimulatorLeft, SimulatorProblem
from ludus.collector.segments import SegmentEnd
from ludus.protocol.mlagents import agent_pb2
from tests.ludus.collector.stack import Learner
from tests.ludus.collector.unity.lives import Lives, check_delivered, lives_of
from tests.unity.descriptions import Behavior
from tests.unity.player import Player, Summary
from tests.unity.transcripts import check_transcript
from tests.waiting import eventually
from worker.collectors.events import EpisodesEnded, RoundCollected

SEED = 7
"""Of the runs of `stack.learner`."""
END_SECONDS = 80.0
"""How long a player may take: the first pictures make a collector import torch, which is seconds on a busy machine."""
ARRIVAL_SECONDS = 20.0
"""How long segments may take to the learner."""


def port_of(trainer: Learner, collector: int = 0) -> int:
    """Return where a collector listens."""
    return trainer.endpoints[collector].port


class Participant:
    """A player that plays in a thread of its own."""

    def __init__(self, player: Player, steps: int | None = None, seconds: float | None = None) -> None:
        self.player = player
        self._thread = threading.Thread(target=player.play, args=(steps, seconds))
        self._thread.start()

    @classmethod
    def at(cls, trainer: Learner, behaviors: Sequence[Behavior], steps: int | None = None, **options: Any) -> Self:
        """Let a player of these behaviors play at a service's collector; its transcript is kept."""
        return cls(Player(port_of(trainer), behaviors, record=True, **options), steps)

    @property
    def agent_steps(self) -> int:
        """Decisions that were answered so far."""
        return self.player.summary.agent_steps

    @property
    def is_playing(self) -> bool:
        """Whether the player has not come to its end."""
        return self._thread.is_alive()

    def end(self) -> Summary:
        """Wait until the player has come to its end by itself."""
        self._thread.join(END_SECONDS)
        assert not self._thread.is_alive(), "the player goes on"
        return self.player.summary

    def leave(self) -> Summary:
        """Let the player say goodbye."""
        self.player.leave()
        return self.end()

    def vanish(self) -> Summary:
        """Cut the player's connection."""
        self.player.vanish()
        return self.end()


def number_of(summary: Summary) -> int:
    """Return a simulator's number: its seed is the run's and this."""
    return summary.seed - SEED


def collected(trainer: Learner, behavior: str, number: int) -> None:
    """Wait until every step of a round has come back."""
    trainer.wait_for(RoundCollected, lambda notice: (notice.behavior, notice.round) == (behavior, number))


def left(trainer: Learner, number: int) -> SimulatorLeft:
    """Wait until a simulator's session is over, and return how."""
    return trainer.wait_for(SimulatorLeft, lambda notice: notice.number == number)


def trouble(trainer: Learner, code: str, number: int) -> SimulatorProblem:
    """Wait until a trouble of this simulator is told of."""
    return trainer.wait_for(SimulatorProblem, lambda notice: notice.code == code and notice.number == number)


def converse(trainer: Learner, behaviors: Sequence[Behavior], steps: int, **options: Any) -> "Conversation":
    """Play so many steps of a game, say goodbye, and check what came of it at both ends."""
    participant = Participant.at(trainer, behaviors, steps, **options)
    assert participant.end().ending == "left"
    return Conversation(trainer, participant.player)


class Conversation:
    """A conversation that is over. It kept the rules, and all that was said in it arrived at the learner."""

    def __init__(self, trainer: Learner, player: Player) -> None:
        self.summary = player.summary
        self.transcript = player.transcript
        self.number = number_of(self.summary)
        assert check_transcript(self.transcript, seed=SEED + self.number) == []
        self.lives: Lives = lives_of(self.transcript)
        with suppress(AssertionError):
            eventually(lambda: self._is_right(trainer), "everything arrives", ARRIVAL_SECONDS)
        self.delivered_steps = self._check(trainer)

    def _is_right(self, trainer: Learner) -> bool:
        with suppress(AssertionError):
            self._check(trainer)
            return True
        return False

    def _check(self, trainer: Learner) -> int:
        told = [
            (notice.behavior, agent, round(value, 4), round(group, 4), length, truncated)
            for notice in trainer.heard(EpisodesEnded)
            for simulator, agent, value, group, length, truncated in notice.records[
                ["simulator", "agent", "return", "group_return", "length", "truncated"]
            ].tolist()
            if simulator == self.number
        ]
        lived = [
            (
                behavior,
                agent,
                round(sum(step.reward for step in life.steps), 4),
                round(sum(step.group_reward for step in life.steps), 4),
                len(life.steps),
                life.ending is SegmentEnd.TRUNCATED,
            )
            for (behavior, agent), lives in self.lives.items()
            for life in lives
            if life.ending is not SegmentEnd.CUT
        ]
        assert sorted(told) == sorted(lived)
        return check_delivered(self.lives, trainer.delivered, self.number)

    def infos(self, name: str) -> list[list[agent_pb2.AgentInfoProto]]:
        """Return what a behavior's agents said, message by message; without the handshake and the goodbye."""
        said = [message.unity_output.rl_output for direction, message in self.transcript if direction == "sent"]
        return [list(output.agentInfos[name].value) for output in said[2:-1] if name in output.agentInfos]
