"""The values of observations, element by element: what never changes, and what is too large or too small."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.protocol.spec import BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from worker.experience.rollout import Rollout

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

Values = NDArray[Any]


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
    """The values of one sensor so far: least and greatest ones since the run began, those of the last sample."""

    least: Values | None = None
    greatest: Values | None = None
    beyond: list[float] = field(default_factory=list)
    """Of the last sample: greatest magnitude, its element, and the share of steps in which that is large."""
    measures: bool = False
    """Whether all elements that vary are measurements, rather than flags or kinds, by the last sample."""


class Observed:
    """The observations of one behavior."""

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
            spec = self._specs[index]
            values = sample.observations[index].numpy().reshape(sample.steps, -1)
            least, greatest = values.min(0), values.max(0)
            sensor.least = least if sensor.least is None else np.minimum(sensor.least, least)
            sensor.greatest = greatest if sensor.greatest is None else np.maximum(sensor.greatest, greatest)
            if spec.dtype == "float32":
                magnitude = np.maximum(-least.astype(np.float64), greatest)
                at = int(magnitude.argmax())
                limit = LARGE_PICTURE if len(spec.shape) == 3 else LARGE
                share = float((np.abs(values[:, at]) > limit).mean())
                sensor.beyond = [float(magnitude[at]), float(at), share]
            fixed = sensor.least == sensor.greatest
            if len(spec.shape) == 1 and 0 < fixed.sum() <= MOST_CONSTANT:
                varying = values[:, ~fixed].T
                sensor.measures = all(len(np.unique(element)) >= CONTINUOUS for element in varying)

    def constant(self) -> list[Element]:
        """Return the sensors and elements that have had one value since the run began.

        Left out is what is legitimately constant: goals, empty lists of entities, flags, one-hot numbers, padding, rays
        that always reach their end (the constant is the least or greatest value of its neighbours, too).
        """
        found = []
        for index, sensor in self._sensors.items():
            spec = self._specs[index]
            if sensor.least is None or sensor.greatest is None or not _informs(spec):
                continue
            fixed = sensor.least == sensor.greatest
            if fixed.all():
                value = float(sensor.least[0]) if len(set(sensor.least.tolist())) == 1 else float("nan")
                found.append(Element(_name(spec, index), "", value, len(spec.shape)))
            elif len(spec.shape) == 1 and fixed.any():
                found += [
                    Element(_name(spec, index), f"element {at}", float(sensor.least[at]), 1)
                    for at in self._stuck(sensor, fixed)
                ]
        return found

    def is_blind(self) -> bool:
        """Whether no observation at all has ever changed; False where sensors have no numbers that could."""
        return bool(self._sensors) and all(
            sensor.least is not None and bool((sensor.least == sensor.greatest).all())
            for sensor in self._sensors.values()
        )

    def large(self, *, vectors: bool) -> Element | None:
        """Return the element that is too large most, in the last sample; of vectors only if they are not normalized."""
        found = [
            Element(_name(spec, index), _place(spec, int(sensor.beyond[1])), sensor.beyond[0], len(spec.shape))
            for index, spec, sensor in ((index, self._specs[index], sensor) for index, sensor in self._sensors.items())
            if sensor.beyond and sensor.beyond[2] > OUTLIERS and (vectors or len(spec.shape) != 1)
        ]
        return max(found, key=lambda element: element.value, default=None)

    def small(self) -> float | None:
        """Return the greatest magnitude of the last sample, if all that varies is too small; else None."""
        magnitudes = [sensor.beyond[0] for sensor in self._sensors.values() if sensor.beyond]
        if self.is_blind() or not magnitudes or len(magnitudes) < len(self._sensors):
            return None
        return max(magnitudes) if max(magnitudes) < SMALL else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "samples": self.samples,
            "sensors": [
                [sensor.least, sensor.greatest, list(sensor.beyond), sensor.measures]
                for sensor in self._sensors.values()
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the result of `state_dict`."""
        self.samples = state["samples"]
        saved = zip(self._sensors, state["sensors"], strict=True)
        self._sensors = {index: Sensor(*values) for index, values in saved}

    def _stuck(self, sensor: Sensor, fixed: NDArray[np.bool_]) -> Iterator[int]:
        """Yield the constant elements that are measurements: among others of a vector, or of no whole number."""
        assert sensor.least is not None
        assert sensor.greatest is not None
        places = np.flatnonzero(fixed).tolist()
        if len(places) > MOST_CONSTANT or 2 * len(places) > len(fixed):
            return
        others = np.flatnonzero(~fixed)
        least, greatest = float(sensor.least[others].min()), float(sensor.greatest[others].max())
        for at in places:
            value = float(sensor.least[at])
            if value not in {least, greatest} and (sensor.measures or not value.is_integer()):
                yield at


def _informs(spec: ObservationSpec) -> bool:
    is_list = DimensionProperty.VARIABLE_SIZE in spec.dimension_properties
    return spec.type is not ObservationType.GOAL_SIGNAL and not is_list


def _name(spec: ObservationSpec, index: int) -> str:
    return f"observation {index} ({spec.name})" if spec.name else f"observation {index}"


def _place(spec: ObservationSpec, at: int) -> str:
    """Return which element of a sensor has this number in the flat order."""
    if prod(spec.shape) == 1:
        return ""
    where = np.unravel_index(at, spec.shape)
    return f"element {at}" if len(where) == 1 else f"element {list(map(int, where))}"
