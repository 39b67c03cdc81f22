"""Drawing environment parameters for native simulators.

Unity builds get samplers and draw by themselves. Native simulators get values that the server has drawn, when their
session begins, with every reset and with every change, and also the samplers, from which a game may draw again for each
episode (`EnvironmentParameters`). Draws are the same in each repetition of a run, and different in each simulator.
"""

from collections.abc import Iterator, Mapping
from typing import Any, assert_never

import numpy as np

from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform


class ParameterDraws:
    """A sequence of values for one simulator."""

    def __init__(self, values: Mapping[str, ParameterValue], *key: int) -> None:
        """`key` is the simulator's number in its run, and other numbers that make the draws different."""
        self._key = key
        self._values: dict[str, ParameterValue] = {}
        self._generators: dict[str, np.random.Generator] = {}
        self.newest: dict[str, float] = {}
        """The values that `next` returned last, or that were restored."""
        self.change(values)

    def change(self, values: Mapping[str, ParameterValue]) -> None:
        """Draw from these values from now on. Samplers that have not changed keep their generators."""
        before, self._generators = self._generators, {}
        for name, value in values.items():
            if not isinstance(value, Constant):
                self._generators[name] = (
                    before[name]
                    if self._values.get(name) == value
                    else np.random.default_rng([value.seed % 2**32, *self._key])
                )
        self._values = dict(values)

    @property
    def state(self) -> dict[str, Any]:
        """State of the generators by parameter, for `restore`."""
        return {name: dict(generator.bit_generator.state) for name, generator in self._generators.items()}

    def restore(self, state: Mapping[str, Any], newest: Mapping[str, float]) -> None:
        """Restore the generators from a state, and the newest values; generators that it does not have begin again."""
        self.newest = dict(newest)
        for name, generator in self._generators.items():
            if name in state:
                generator.bit_generator.state = state[name]

    def next(self) -> dict[str, float]:
        """Return the next values, by parameter."""
        self.newest = {name: self._draw(name, value) for name, value in self._values.items()}
        return self.newest

    def _draw(self, name: str, value: ParameterValue) -> float:
        match value:
            case Constant():
                return value.value
            case Uniform():
                return float(self._generators[name].uniform(value.minimum, value.maximum))
            case Gaussian():
                return float(value.mean + value.st_dev * self._generators[name].standard_normal())
            case MultiRangeUniform():
                # Evenly from all intervals together; from single points only where there is nothing else.
                widths = np.array([maximum - minimum for minimum, maximum in value.intervals])
                odds = widths / widths.sum() if widths.sum() > 0 else None
                minimum, maximum = value.intervals[self._generators[name].choice(len(widths), p=odds)]
                return float(self._generators[name].uniform(minimum, maximum))
        assert_never(value)


class EnvironmentParameters(Mapping[str, float]):
    """The newest environment parameters from the server: a mapping to their values.

    They may change at any time of a run; new ones are meant for the episodes that begin after that. `draw` returns
    new values for an episode where parameters have samplers.
    """

    def __init__(
        self,
        values: Mapping[str, float] | None = None,
        samplers: Mapping[str, ParameterValue] | None = None,
        number: int = 0,
    ) -> None:
        """`samplers` are those of the parameters that are not constant; `number` is the simulator's in its run."""
        self._values = dict(values or {})
        self._samplers = dict(samplers or {})
        self._draws = ParameterDraws(self._samplers, number, 1)  # other draws than those of the server

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def samplers(self) -> Mapping[str, ParameterValue]:
        """Samplers by parameter, without constant ones."""
        return self._samplers

    def draw(self) -> dict[str, float]:
        """Return values for a new episode: drawn again from the samplers; all others do not change."""
        return self._values | self._draws.next()

    def change(self, values: Mapping[str, float], samplers: Mapping[str, ParameterValue]) -> None:
        """Replace all parameters by those from the server."""
        self._values = dict(values)
        self._samplers = dict(samplers)
        self._draws.change(samplers)
