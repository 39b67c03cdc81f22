"""The interface that a game implements so that agents can be trained in it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ludus.protocol.batches import Outcome
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.steps import Actions, StepBuilder


@dataclass(frozen=True)
class ResetInfo:
    """Arguments of a reset: seed, environment parameters and the identity of the simulator in its run."""

    seed: int
    """This simulator's own seed: the run's seed + `number`."""
    parameters: Mapping[str, float]
    """Environment parameters of the run's configuration, to apply before the new episodes. They may change while the
    run goes on: `StepBuilder.parameters` has the newest, for every episode that begins later."""
    number: int
    """Number of this simulator in the run, from 0."""
    run_id: str
    first: bool
    """True the first time in this process. Seed the game only then: later resets must not repeat the same episodes."""


class Simulation(ABC):
    """A game, as the server sees it. Subclass it, then pass an instance to `ludus.sdk.connect`.

    `reset` and `step` play until an agent needs an action, and record the events with `builder`. The first
    `builder.request_decision` of an agent id begins an episode, `builder.end_episode` ends it; agents may come and go
    at any time. If no agent asks for an action and none waits for one, `step` is called again at once, without actions.
    """

    waits_for_all: bool = False
    """Whether `step` is called only when every agent that waits has been answered, with all answers at once: for games
    in which all agents move at the same time."""
    behaviors: Sequence[BehaviorSpec] = ()
    """The announced behaviors of the agents. `builder.announce` adds further ones later."""

    @abstractmethod
    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Abandon all episodes and begin new ones. Called first, and again after a reconnection or on the run's
        demand."""

    @abstractmethod
    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Carry out the actions and play on.

        `actions` need not answer every agent that waits, unless `waits_for_all`: the others follow in a later call.
        """

    def close(self) -> None:  # noqa: B027  most games hold nothing
        """Release the resources of the game. Called once, when the connection has ended for good."""


class SimulationWrapper(Simulation):
    """A simulation that changes or observes another one, to which it forwards all that its subclass does not change."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    @property
    def waits_for_all(self) -> bool:  # type: ignore[override]  # the wrapped game decides
        """Whether the wrapped simulation waits for all answers."""
        return self._simulation.waits_for_all

    @property
    def behaviors(self) -> Sequence[BehaviorSpec]:  # type: ignore[override]  # a game may know them late
        """The behaviors of the wrapped simulation."""
        return self._simulation.behaviors

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Reset the wrapped simulation."""
        self._simulation.reset(builder, start)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Step the wrapped simulation."""
        self._simulation.step(builder, actions)

    def close(self) -> None:
        """Close the wrapped simulation."""
        self._simulation.close()


class ResumableSimulation(Simulation):
    """A game that can restore its position, so that a run resumes from a checkpoint in the middle of its episodes.

    Whenever the run writes a checkpoint it asks the game for its `position`, which becomes part of it. When the run
    continues from there, in another process or on another machine, the server asks this game to `resume` at it;
    other games begin new episodes. A run in lockstep on a CPU (`threaded: false`) with one such game, that computes the
    same from the same input, continues bit for bit as if it had never been interrupted.
    """

    @abstractmethod
    def position(self) -> bytes:
        """Return all that `resume` needs to come back to this point, generators included; at most 16 MiB.

        Called between two steps, while agents wait for their actions.
        """

    @abstractmethod
    def resume(self, builder: StepBuilder, start: ResetInfo, position: bytes) -> None:
        """Go back to where `position` was called, and ask again for the agents that waited there, in the same order.

        No agent may end in this step, and rewards are not counted again. The parameters in `start` are those of then.
        """


@dataclass(frozen=True)
class NonActingPlayer:
    """A player whose game ended before it acted. A run counts no episode for it, but the game has an outcome."""

    behavior: str
    """As announced."""
    reward: float
    outcome: Outcome


class GameSimulation(Simulation):
    """Games that begin again by themselves when they are over, and are counted: single episodes can be played."""

    finished: int = 0
    """Games that were played to their end since the latest reset."""
    non_acting_players: Sequence[NonActingPlayer] = ()
    """Those of the game that finished last."""
