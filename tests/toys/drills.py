"""Small tasks with known answers: many agents at once, in episodes of one length that begin and end together.

A drill answers actions with the batch that a simulator would send. Each says what its best mean reward is and what one
gets without what it trains (memory, the goal, the picture, ...): the negative control of a test.
"""

from collections.abc import Sequence

import numpy as np

from ludus.protocol.batches import Array, BehaviorBatch, DecisionBatch, TerminalBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType


class Drill:
    """What all drills have in common. `rng` draws the tasks, so a drill is the same for the same seed."""

    name = "Drill"
    length = 1
    """Steps of an episode."""
    group_size = 0
    """So many agents are a group; 0: nobody is."""

    def __init__(self, observations: Sequence[ObservationSpec], actions: ActionSpec, agents: int, seed: int) -> None:
        self.spec = BehaviorSpec(self.name, tuple(observations), actions)
        self.agents = agents
        self.rng = np.random.default_rng(seed)
        self.at = 0
        """The step of the episode that is being decided, from 0."""
        self.earned: list[float] = []
        """The mean reward of the agents after each step of the game, since `score` was asked for last."""

    def deal(self) -> None:
        """Draw a new task for every agent."""
        raise NotImplementedError

    def see(self) -> tuple[Array, ...]:
        """Return what the agents see now."""
        raise NotImplementedError

    def allowed(self) -> Array | None:
        """Return the action masks of now."""
        return None

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        """Return the rewards for what the agents did."""
        raise NotImplementedError

    def begin(self) -> BehaviorBatch:
        """Return the first message."""
        self.deal()
        return BehaviorBatch(self.name, self._decisions(np.zeros(self.agents)), None)

    def play(self, continuous: Array, discrete: Array) -> BehaviorBatch:
        """Return the message that answers the actions of all agents, in their order."""
        rewards = self.evaluate(continuous, discrete)
        self.earned.append(float(rewards.mean()))
        self.at += 1
        if self.at < self.length:
            return BehaviorBatch(self.name, self._decisions(rewards), None)
        ends = TerminalBatch(self._ids(), rewards.astype(np.float32), self.see(), np.zeros(self.agents, bool))
        ends = ends._replace(group_ids=self._groups())
        self.at = 0
        self.deal()
        return BehaviorBatch(self.name, self._decisions(np.zeros(self.agents)), ends)

    def score(self) -> float:
        """Return the mean return of an episode since the last call."""
        earned, self.earned = self.earned, []
        return float(np.mean(earned)) * self.length

    def _decisions(self, rewards: Array) -> DecisionBatch:
        return DecisionBatch(self._ids(), rewards.astype(np.float32), self.see(), self.allowed(), self._groups())

    def _groups(self) -> Array | None:
        return self._ids() // self.group_size + 1 if self.group_size else None

    def _ids(self) -> Array:
        return np.arange(self.agents, dtype=np.int32)


def one_hot(numbers: Array, size: int) -> Array:
    return np.eye(size, dtype=np.float32)[numbers]


class Echo(Drill):
    """Do what you see: the column's target, the branch's number; other choices are forbidden at random.

    The reward is 1 for all branches right at once, less the mean squared distance of the columns. Best: 1 (0 without
    branches). With `see_nothing` at best 1 for the likeliest choice.
    """

    name = "Echo"

    def __init__(
        self,
        continuous: int = 0,
        branches: tuple[int, ...] = (),
        *,
        agents: int = 256,
        seed: int = 1,
        masked: bool = False,
    ) -> None:
        seen = [ObservationSpec((size,), f"branch {index}") for index, size in enumerate(branches)]
        columns = [ObservationSpec((continuous,), "targets")] if continuous else []
        super().__init__(columns + seen, ActionSpec(continuous, branches), agents, seed)
        self.masked = masked

    def deal(self) -> None:
        actions = self.spec.actions
        self.targets = self.rng.uniform(-0.8, 0.8, (self.agents, actions.continuous_size)).astype(np.float32)
        self.numbers = [self.rng.integers(0, size, self.agents) for size in actions.discrete_branches]

    def see(self) -> tuple[Array, ...]:
        shown = [one_hot(number, size) for number, size in zip(self.numbers, self._branches, strict=True)]
        return tuple([self.targets, *shown] if self.targets.shape[1] else shown)

    def allowed(self) -> Array | None:
        if not self.masked:
            return None
        wanted = np.concatenate(
            [one_hot(number, size) for number, size in zip(self.numbers, self._branches, strict=True)], 1
        )
        return ((self.rng.random(wanted.shape) < 0.5) | (wanted > 0)).astype(np.uint8)

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        right = np.all([discrete[:, index] == number for index, number in enumerate(self.numbers)], 0)
        rewards = np.broadcast_to(right, self.agents).astype(np.float32) if self.numbers else np.zeros(self.agents)
        return rewards - ((continuous - self.targets) ** 2).mean(1) if self.targets.shape[1] else rewards

    @property
    def _branches(self) -> tuple[int, ...]:
        return self.spec.actions.discrete_branches


class Arms(Drill):
    """A bandit: sees nothing; the arms pay 1 with these chances. Best: the best arm's chance."""

    name = "Arms"
    chances = (0.2, 0.5, 0.8)

    def __init__(self, *, agents: int = 256, seed: int = 1) -> None:
        super().__init__([ObservationSpec((1,), "nothing")], ActionSpec(0, (len(self.chances),)), agents, seed)

    def deal(self) -> None:
        pass

    def see(self) -> tuple[Array, ...]:
        return (np.zeros((self.agents, 1), np.float32),)

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        return (self.rng.random(self.agents) < np.array(self.chances)[discrete[:, 0]]).astype(np.float32)


class Recall(Drill):
    """Sees one of two cues at first, then nothing for some steps, then a question: which cue was it?

    The reward is 1 for the right answer, at the last step. Best per episode: 1. Without memory: 1/2.
    """

    name = "Recall"

    def __init__(self, *, gap: int = 2, agents: int = 64, seed: int = 1) -> None:
        super().__init__([ObservationSpec((3,), "cue and question")], ActionSpec(0, (2,)), agents, seed)
        self.length = gap + 2

    def deal(self) -> None:
        self.cue = self.rng.integers(0, 2, self.agents)

    def see(self) -> tuple[Array, ...]:
        seen = np.zeros((self.agents, 3), np.float32)
        if self.at == 0:
            seen[:, :2] = one_hot(self.cue, 2)
        elif self.at == self.length - 1:
            seen[:, 2] = 1.0
        return (seen,)

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        asked = self.at == self.length - 1
        return (asked & (discrete[:, 0] == self.cue)).astype(np.float32)


class Errand(Drill):
    """Sees a place (one of three) and, as a goal signal, where to go; the right step is the difference, modulo 3.

    Best: 1. Without the goal: 1/3.
    """

    name = "Errand"

    def __init__(self, *, goal: bool = True, agents: int = 256, seed: int = 1) -> None:
        observations = [ObservationSpec((3,), "place"), ObservationSpec((3,), "goal", type=ObservationType.GOAL_SIGNAL)]
        super().__init__(observations, ActionSpec(0, (3,)), agents, seed)
        self.goal_is_shown = goal

    def deal(self) -> None:
        self.place, self.goal = self.rng.integers(0, 3, (2, self.agents))

    def see(self) -> tuple[Array, ...]:
        return one_hot(self.place, 3), one_hot(self.goal, 3) * np.float32(self.goal_is_shown)

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        return (discrete[:, 0] == (self.goal - self.place) % 3).astype(np.float32)


class Market(Drill):
    """Sees up to four offers, each of one of three kinds and with a price of its own; the right choice is the kind of
    the cheapest one. How many there are differs, and so does where in the list they stand.

    Best: 1. Without the offers: 1/3.
    """

    name = "Market"
    offers, kinds = 4, 3

    def __init__(self, *, shown: bool = True, agents: int = 256, seed: int = 1) -> None:
        unordered = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
        offers = ObservationSpec((self.offers, self.kinds + 1), "offers", dimension_properties=unordered)
        observations = [ObservationSpec((1,), "self"), offers]
        super().__init__(observations, ActionSpec(0, (self.kinds,)), agents, seed)
        self.offers_are_shown = shown

    def deal(self) -> None:
        count = self.rng.integers(1, self.offers + 1, self.agents)
        self.there = np.arange(self.offers) < count[:, None]
        self.kind = self.rng.integers(0, self.kinds, (self.agents, self.offers))
        # Prices are a permutation of a ladder: never nearly equal.
        ladder = np.linspace(-1.0, 1.0, self.offers, dtype=np.float32)
        self.price = self.rng.permuted(np.tile(ladder, (self.agents, 1)), axis=1)

    def see(self) -> tuple[Array, ...]:
        offers = np.concatenate([one_hot(self.kind, self.kinds), self.price[:, :, None]], 2)
        shown = offers * (self.there & self.offers_are_shown)[:, :, None]
        return np.ones((self.agents, 1), np.float32), shown.astype(np.float32)

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        cheapest = np.where(self.there, self.price, np.inf).argmin(1)
        return (discrete[:, 0] == self.kind[np.arange(self.agents), cheapest]).astype(np.float32)


class Spotlight(Drill):
    """Sees a dim picture with a bright patch in one of its four quarters; the right choice is the quarter.

    Best: 1. Without the picture: 1/4.
    """

    name = "Spotlight"

    def __init__(self, size: int, *, lit: bool = True, dtype: str = "uint8", agents: int = 128, seed: int = 1) -> None:
        assert dtype in {"uint8", "float32"}
        observations = [ObservationSpec((1, size, size), "camera", dtype=dtype)]  # type: ignore[arg-type]
        super().__init__(observations, ActionSpec(0, (4,)), agents, seed)
        self.size, self.is_lit, self.dtype = size, lit, np.dtype(dtype)

    def deal(self) -> None:
        self.quarter = self.rng.integers(0, 4, self.agents)
        half = self.size // 2
        pictures = self.rng.integers(0, 64, (self.agents, 1, self.size, self.size))
        if self.is_lit:
            rows, columns = self.quarter // 2 * half, self.quarter % 2 * half
            across = np.arange(half)
            agent = np.arange(self.agents)[:, None, None]
            pictures[agent, 0, (rows[:, None] + across)[:, :, None], (columns[:, None] + across)[:, None, :]] += 160
        self.pictures = pictures

    def see(self) -> tuple[Array, ...]:
        if self.dtype == np.uint8:
            return (self.pictures.astype(np.uint8),)
        return ((self.pictures / 255.0).astype(np.float32),)

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        return (discrete[:, 0] == self.quarter).astype(np.float32)
