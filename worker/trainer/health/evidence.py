"""The evidence on a behavior's health: what it has played and seen, and what its updates have measured.

What is kept in a checkpoint is plain (numbers, lists, dicts, arrays), so that a resumed run finds nothing twice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import prod, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.collector.segments import SegmentEnd
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from server.ladders.refs import PlayedMatch
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.trainer.health.divergence import KL_METRIC, Divergence
from worker.trainer.health.influence import Score

FIRST: Final = 50
"""Episodes of the beginning, to which the newest are compared."""
NEWEST: Final = 100
LEAST: Final = 10
"""Fewest episodes of either that are compared."""
BETTER: Final = 2.0
"""Standard errors by which returns have to be above those of the beginning to count as better."""
EXPLAINED_VARIANCE = "Losses/Explained Variance"
VALUE_LOSS = "Losses/Value Loss"
NEWEST_SHARE = 0.2
"""Weight of the newest update in the running means."""
LARGE: Final = 1e3
"""Magnitude from which an element saturates networks that expect numbers near 1."""
LARGE_PICTURE: Final = 100.0
"""That of pictures of floats, whose networks expect 0 to 1: 0 to 255 is the common mistake."""
SMALL: Final = 1e-3
"""Magnitude below which a network sees nothing but its own bias, if all elements are so small."""
OUTLIERS: Final = 0.01
"""Share of steps that may be beyond `LARGE`."""
MOST_CONSTANT: Final = 4
"""More constant elements of a sensor are padding, or kinds of things that this game does not have."""
CONTINUOUS: Final = 10
"""Distinct values from which an element is a measurement, rather than a flag or one of several kinds."""


class Fact(NamedTuple):
    """Something that a person should know (`ludus.schemas.Finding`)."""

    code: str
    message: str
    remedy: str
    figures: State
    since: int | None = None
    """Step at which it began; None: when it was found."""


@dataclass
class Episodes:
    """The episodes of the agents that learn."""

    count: int = 0
    last_end: int = 0
    """Step of the behavior after the round in which the newest ended."""
    before: int = 0
    """How many had ended before that round."""
    paid: int = 0
    """Those whose return is not 0."""
    least: float = 0.0
    greatest: float = 0.0
    """Of all returns."""
    shortest: int = 0
    longest: int = 0
    """Of all lengths, in decisions."""
    first: list[float] = field(default_factory=list)
    newest: list[float] = field(default_factory=list)
    """Returns of the first ones, and of the newest."""

    def add(self, episode_return: float, length: int) -> None:
        """Count an episode that ended."""
        if not self.count:
            self.least = self.greatest = episode_return
            self.shortest = length
        self.count += 1
        self.paid += episode_return != 0
        self.least, self.greatest = min(self.least, episode_return), max(self.greatest, episode_return)
        self.shortest, self.longest = min(self.shortest, length), max(self.longest, length)
        (self.first if len(self.first) < FIRST else self.newest).append(episode_return)
        del self.newest[:-NEWEST]

    def improved(self) -> bool | None:
        """Return whether the newest returns are better than those of the beginning; None if too few are known."""
        first, newest = np.array(self.first), np.array(self.newest)
        if len(newest) < LEAST:
            first, newest = np.split(first, [len(first) // 2])
        if len(first) < LEAST or len(newest) < LEAST:
            return None
        error = sqrt(float(first.var()) / len(first) + float(newest.var()) / len(newest))
        return float(newest.mean() - first.mean()) > max(BETTER * error, 1e-9)

    @property
    def mean(self) -> float:
        """Mean return of the newest episodes."""
        return float(np.mean(self.newest or self.first)) if self.count else 0.0


@dataclass
class Rewards:
    """The rewards of samples: those of the agents and of their groups together."""

    steps: int = 0
    events: int = 0
    """Steps whose reward is another one than the usual, or that terminate an episode."""
    least: float = 0.0
    greatest: float = 0.0
    size: float = 0.0
    """Root mean square of the last sample's rewards that are not 0."""

    def add(self, sample: Rollout) -> None:
        """Look at some steps."""
        rewards = (sample.rewards + sample.group_rewards).numpy()
        least, greatest = float(rewards.min()), float(rewards.max())
        self.least = min(self.least, least) if self.steps else least
        self.greatest = max(self.greatest, greatest) if self.steps else greatest
        self.steps += sample.steps
        values, counts = np.unique(rewards, return_counts=True)
        is_event = rewards != values[counts.argmax()]
        is_event[(sample.lengths.cumsum(0) - 1).numpy()[sample.endings.numpy() == SegmentEnd.TERMINATED]] = True
        self.events += int(is_event.sum())
        paid = rewards[rewards != 0].astype(np.float64)
        if len(paid):
            self.size = float(f"{sqrt(float((paid**2).mean())):.6g}")


@dataclass
class Matches:
    """The matches of self-play, as the team that learns saw them, and those of its opponents."""

    count: int = 0
    drawn: int = 0
    truncated: int = 0
    rated: int = 0
    won: int = 0
    opponents: int = 0
    """Episodes of opponents that ended."""
    opponents_won: int = 0

    def add(self, match: PlayedMatch) -> None:
        """Count a match."""
        self.count += 1
        self.drawn += match.outcome == "draw"
        self.won += match.outcome == "win"
        self.truncated += match.truncated
        self.rated += match.rated


@dataclass
class Updates:
    """The measurements of a behavior's updates."""

    count: int = 0
    means: dict[str, float] = field(default_factory=dict)
    """Running means of some metrics."""
    greatest_kl: float = 0.0

    def add(self, measured: Mapping[str, float]) -> None:
        """Count an update."""
        self.count += 1
        self.greatest_kl = max(self.greatest_kl, measured.get(KL_METRIC, 0.0))
        for key, value in measured.items():
            if key in {EXPLAINED_VARIANCE, VALUE_LOSS} or key.endswith((" Policy Estimate", " Expert Estimate")):
                former = self.means.get(key, value)
                self.means[key] = former + NEWEST_SHARE * (value - former)


class Element(NamedTuple):
    """An element of an observation, or a whole one."""

    sensor: str
    place: str
    """Which element in words; empty of a whole sensor."""
    value: float
    """The constant, or the greatest magnitude."""
    rank: int
    """Dimensions of the sensor's shape."""

    @property
    def words(self) -> str:
        """The element in words."""
        return f"{self.place} of {self.sensor}" if self.place else self.sensor


@dataclass
class Sensor:
    """The values of one sensor so far, element by element."""

    least: NDArray[np.generic] | None = None
    greatest: NDArray[np.generic] | None = None
    """Since the run began; None before the first sample."""
    beyond: list[float] = field(default_factory=list)
    """Of the last sample: greatest magnitude, its element, and the share of steps in which that is large."""
    measures: bool = False
    """Whether all elements that vary are measurements, rather than flags or kinds, by the last sample."""

    def add(self, values: NDArray[np.generic], spec: ObservationSpec) -> None:
        """Look at some steps: `values` (steps, elements)."""
        least, greatest = values.min(0), values.max(0)
        self.least = least if self.least is None else np.minimum(self.least, least)
        self.greatest = greatest if self.greatest is None else np.maximum(self.greatest, greatest)
        if spec.dtype == "float32":
            magnitude = np.maximum(-least.astype(np.float64), greatest)
            index = int(magnitude.argmax())
            limit = LARGE_PICTURE if len(spec.shape) == 3 else LARGE
            self.beyond = [float(magnitude[index]), float(index), float((np.abs(values[:, index]) > limit).mean())]
        if len(spec.shape) == 1 and 0 < self.fixed.sum() <= MOST_CONSTANT:
            self.measures = all(len(np.unique(element)) >= CONTINUOUS for element in values[:, ~self.fixed].T)

    @property
    def fixed(self) -> NDArray[np.bool_]:
        """Which elements have never changed; none before the first sample."""
        return np.zeros(1, np.bool_) if self.least is None else np.asarray(self.least == self.greatest)

    def stuck(self) -> Iterator[int]:
        """Yield the constant elements that are measurements: among others of a vector, or of no whole number."""
        assert self.least is not None
        assert self.greatest is not None
        places, varying = np.flatnonzero(self.fixed).tolist(), np.flatnonzero(~self.fixed)
        if len(places) > MOST_CONSTANT or 2 * len(places) > len(self.fixed):
            return
        ends = {float(self.least[varying].min()), float(self.greatest[varying].max())}
        for place in places:
            value = float(self.least[place])
            if value not in ends and (self.measures or not value.is_integer()):
                yield place


class Observed:
    """The observations of one behavior: what never changes, and what is too large or too small."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self._specs = spec.observations
        self._sensors = {index: Sensor() for index, sensor in enumerate(spec.observations) if prod(sensor.shape)}
        """By index; sensors of no numbers say nothing."""
        self.samples = 0
        """Steps that were looked at."""

    def add(self, sample: Rollout) -> None:
        """Look at some steps."""
        self.samples += sample.steps
        for index, sensor in self._sensors.items():
            sensor.add(sample.observations[index].numpy().reshape(sample.steps, -1), self._specs[index])

    def constant(self) -> list[Element]:
        """Return the sensors and elements that have had one value since the run began.

        Left out is what is legitimately constant: goals, empty lists of entities, flags, one-hot numbers, padding, rays
        that always reach their end (the constant is the least or greatest value of its neighbours, too).
        """
        elements = []
        for index, sensor in self._sensors.items():
            spec = self._specs[index]
            is_list = DimensionProperty.VARIABLE_SIZE in spec.dimension_properties
            if sensor.least is None or spec.type is ObservationType.GOAL_SIGNAL or is_list:
                continue
            if sensor.fixed.all():
                value = float(sensor.least[0]) if len(set(sensor.least.tolist())) == 1 else float("nan")
                elements.append(Element(_name(spec, index), "", value, len(spec.shape)))
            elif len(spec.shape) == 1 and sensor.fixed.any():
                elements += [
                    Element(_name(spec, index), f"element {place}", float(sensor.least[place]), 1)
                    for place in sensor.stuck()
                ]
        return elements

    def is_blind(self) -> bool:
        """Whether no observation at all has ever changed; False where sensors have no numbers that could."""
        return bool(self._sensors) and all(sensor.fixed.all() for sensor in self._sensors.values())

    def large(self, *, vectors: bool) -> Element | None:
        """Return the element that is too large most, in the last sample; of vectors only if they are not normalized."""
        elements = [
            Element(_name(spec, index), _place(spec, int(sensor.beyond[1])), sensor.beyond[0], len(spec.shape))
            for index, sensor, spec in ((index, sensor, self._specs[index]) for index, sensor in self._sensors.items())
            if sensor.beyond and sensor.beyond[2] > OUTLIERS and (vectors or len(spec.shape) != 1)
        ]
        return max(elements, key=lambda element: element.value, default=None)

    def small(self) -> float | None:
        """Return the greatest magnitude of the last sample, if all that varies is too small; else None."""
        magnitudes = [sensor.beyond[0] for sensor in self._sensors.values() if sensor.beyond]
        if self.is_blind() or not magnitudes or len(magnitudes) < len(self._sensors):
            return None
        return max(magnitudes) if max(magnitudes) < SMALL else None

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        return {"samples": self.samples, "sensors": [list(vars(sensor).values()) for sensor in self._sensors.values()]}

    def load_state_dict(self, state: State) -> None:
        """Go on from the result of `state_dict`."""
        self.samples = state["samples"]
        saved = zip(self._sensors, state["sensors"], strict=True)
        self._sensors = {index: Sensor(*values) for index, values in saved}


def _name(spec: ObservationSpec, index: int) -> str:
    return f"observation {index} ({spec.name})" if spec.name else f"observation {index}"


def _place(spec: ObservationSpec, index: int) -> str:
    """Return which element of a sensor has this number in the flat order."""
    if prod(spec.shape) == 1:
        return ""
    where = np.unravel_index(index, spec.shape)
    return f"element {index}" if len(where) == 1 else f"element {list(map(int, where))}"


@dataclass
class Evidence:
    """All that is known of a behavior."""

    spec: BehaviorSpec
    config: ReinforcementConfig
    step: int
    """Steps learned from."""
    has_lessons: bool
    """Whether the game changes while the behavior learns, so that returns of different times are not compared."""
    episodes: Episodes = field(default_factory=Episodes)
    rewards: Rewards = field(default_factory=Rewards)
    matches: Matches = field(default_factory=Matches)
    updates: Updates = field(default_factory=Updates)
    influence: dict[str, Score] = field(default_factory=dict)
    """By column or branch."""
    lengths: list[int] = field(default_factory=list)
    """Shortest and longest demonstrated episode of GAIL; none without."""
    agents: int = 0
    """Most agents that have acted at once."""
    free: int = 0
    """Steps of the samples in which the agent had a choice."""
    ended: bool = False
    """Whether the run is over, so that there will be no more evidence."""

    def __post_init__(self) -> None:
        self.observed = Observed(self.spec)
        self.divergence = Divergence(self.spec)

    @property
    def period(self) -> int:
        """Steps between two reviews."""
        return max(1, min(self.config.summary_freq, self.config.max_steps // 20))

    @property
    def is_late(self) -> bool:
        """Whether half of the steps are learned from, or all that there will be."""
        return self.ended or 2 * self.step >= self.config.max_steps

    @property
    def is_initialized(self) -> bool:
        """Whether the policy began with what another one had learned."""
        return self.config.init_path is not None or self.config.initialize_from is not None

    @property
    def improved(self) -> bool | None:
        """Whether returns are better than at the beginning; None where that cannot be told."""
        return None if self.has_lessons else self.episodes.improved()

    @property
    def strength(self) -> float | None:
        """Of the game's own rewards; None where they do not count."""
        extrinsic = self.config.reward_signals.extrinsic
        return None if extrinsic is None or not extrinsic.strength else extrinsic.strength

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        return {
            "played": {name: asdict(getattr(self, name)) for name in ("episodes", "rewards", "matches")},
            "observed": self.observed.state_dict(),
            "updates": asdict(self.updates),
            "divergence": self.divergence.state_dict(),
            "influence": {name: list(vars(score).values()) for name, score in self.influence.items()},
            "lengths": list(self.lengths),
            "agents": self.agents,
            "free": self.free,
            "step": self.step,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from the result of `state_dict`."""
        played = state["played"]
        self.episodes, self.rewards = Episodes(**played["episodes"]), Rewards(**played["rewards"])
        self.matches, self.updates = Matches(**played["matches"]), Updates(**state["updates"])
        self.observed.load_state_dict(state["observed"])
        self.divergence.load_state_dict(state["divergence"])
        self.influence = {name: Score(*values) for name, values in state["influence"].items()}
        self.lengths, self.agents, self.step = list(state["lengths"]), state["agents"], state["step"]
        self.free = state.get("free", self.rewards.steps)  # of a checkpoint that does not know: all
