"""What a game has to be able to do so that agents can be trained in it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ludus.protocol.batches import Outcome
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.steps import Actions, Turn


@dataclass(frozen=True)
class Start:
    """What a simulation is told when it shall begin new episodes."""

    seed: int
    """This simulator's own seed: the run's seed + `number`."""
    parameters: Mapping[str, float]
    """Environment parameters of the run's configuration, to apply before the new episodes. They may change while the
    run goes on: `Turn.parameters` has the newest, for every episode that begins later."""
    number: int
    """Number of this simulator in the run, from 0."""
    run_id: str
    first: bool
    """True the first time in this process. Seed the game only then: a later reset shall not repeat the same
    episodes."""


class Simulation(ABC):
    """A game, as the server sees it. Subclass it, then hand an instance to `ludus.sdk.simulator.connect`.

    `reset` and `step` play until some agent needs an action, and tell on `turn` what happened. Agents come and go as
    they like: the first `turn.decide` of an id begins an episode, `turn.end` ends it. A turn in which nobody asks for
    an action, while nobody waits for one, is fine too: `step` is called again at once, with no actions.
    """

    behaviors: Sequence[BehaviorSpec] = ()
    """What the agents see and do. Further ones can be introduced later with `turn.announce`."""

    @abstractmethod
    def reset(self, turn: Turn, start: Start) -> None:
        """Abandon all episodes and begin new ones. Called first, and again after a reconnection or on the run's
        demand."""

    @abstractmethod
    def step(self, turn: Turn, actions: Actions) -> None:
        """Carry out the actions and play on.

        `actions` need not answer every agent that waits: the others follow in a later call.
        """

    def close(self) -> None:  # noqa: B027  most games hold nothing
        """Release what the game holds. Called once, when the connection has ended for good."""


class ResumableSimulation(Simulation):
    """A game that can go back to where it was, so that a run goes on from a checkpoint in the middle of its episodes.

    Whenever the run writes a checkpoint it asks the game for its `position`, which becomes part of it. When the run
    goes on from there, in another process or on another machine, this process of the game is told to `resume` at it;
    other games begin new episodes. A run in lockstep on a CPU (`threaded: false`) with one such game, that computes the
    same whenever it is told the same, goes on bit for bit as if it had never been interrupted.
    """

    @abstractmethod
    def position(self) -> bytes:
        """Return all that `resume` needs to come back to this point, generators included; at most 16 MiB.

        Called between two turns, while agents wait for their actions.
        """

    @abstractmethod
    def resume(self, turn: Turn, start: Start, position: bytes) -> None:
        """Go back to where `position` was called, and ask again for the agents that waited there, in the same order.

        No agent may end in this turn, and rewards are not counted again. The parameters in `start` are those of then.
        """


@dataclass(frozen=True)
class Bystander:
    """A player whose game was over before it ever acted: to a run that is no episode, but somebody won or lost."""

    behavior: str
    """As announced."""
    reward: float
    outcome: Outcome


class GameSimulation(Simulation):
    """Games that begin anew by themselves when they are over, and are counted: single episodes can be played."""

    finished: int = 0
    """Games that were played to their end since the latest reset."""
    bystanders: Sequence[Bystander] = ()
    """Those of the game that finished last."""
