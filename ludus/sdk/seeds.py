"""Seeds of episodes: repeatable, and never the same for two games at once.

Usually a game is seeded once, at its very start. Where a run pairs its episodes (a gate plays both sides of the same
opening), one of its environment parameters has the seed of the next episodes: a whole number from 0 to 2^24, beyond
which float32, its type on the wire, has gaps. From the reset that brings it on, episode k of game i begins with
`episode_seed(value, i, k)`, which is the value itself for the first episode of the first game.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ludus.sdk.errors import SimulatorError
from ludus.sdk.simulation import ResetInfo


def environment_seed(seed: int, index: int) -> int:
    """Seed of one environment of a simulator. Mixed, because simulators' own seeds are consecutive numbers."""
    return int(np.random.SeedSequence((seed, index)).generate_state(1)[0])


def episode_seed(value: int, index: int, episode: int) -> int:
    """Seed of an episode, counted from 0, of one environment, from the one that the run has named."""
    if index == episode == 0:
        return value
    return int(np.random.SeedSequence((value, index, episode)).generate_state(1)[0])


class EpisodeSeeds:
    """Hands out the seed of each episode, or None where a game keeps its generator.

    `seed` replaces the simulator's own seed; `parameter` names the environment parameter that seeds episodes.
    """

    def __init__(self, seed: int | None = None, parameter: str | None = None) -> None:
        self._seed = seed
        self._parameter = parameter
        self._first = False
        self._base = 0
        self._named: int | None = None
        self._begun: Counter[int] = Counter()
        self.options: dict[str, float] | None = None
        """Environment parameters that are not seeds, for the games' own `reset`."""

    def restart(self, start: ResetInfo) -> None:
        """Apply a reset. Raises SimulatorError for a parameter that can be no seed."""
        self._first = start.first
        self._base = start.seed if self._seed is None else self._seed
        self._begun.clear()
        self.change(start.parameters)

    def change(self, parameters: Mapping[str, float]) -> None:
        """Set the parameters of the next episode; another seed restarts the count of episodes.

        Raises SimulatorError for a parameter that can be no seed.
        """
        options = dict(parameters)
        value = None if self._parameter is None else options.pop(self._parameter, None)
        if value is not None and not (value >= 0 and float(value).is_integer()):
            raise SimulatorError(
                "bad_seed",
                f"the environment parameter {self._parameter!r} is {value:g}, which is no seed: "
                "configure whole numbers from 0 on, or leave out --seed-parameter",
            )
        named = None if value is None else int(value)
        if named != self._named:
            self._named = named
            self._begun.clear()
        self.options = options or None

    def next(self, index: int) -> int | None:
        """Return the seed of the next episode of a game."""
        episode = self._begun[index]
        self._begun[index] += 1
        if self._named is not None:
            return episode_seed(self._named, index, episode)
        return environment_seed(self._base, index) if self._first and episode == 0 else None
