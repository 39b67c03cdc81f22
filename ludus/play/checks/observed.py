"""Observations of one behavior: what never changes, and what is too large or too small."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.play.checks.steps import Steps
from ludus.protocol.spec import BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

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

    def add(self, sample: Steps) -> None:
        """Look at some steps."""
        self.samples += sample.count
        for index, sensor in self._sensors.items():
            sensor.add(sample.observations[index].reshape(sample.count, -1), self._specs[index])

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

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"samples": self.samples, "sensors": [list(vars(sensor).values()) for sensor in self._sensors.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
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
