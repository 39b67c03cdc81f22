"""Values of environment parameters: numbers, and samplers from which a game draws on request.

They are ML-Agents' four kinds. A sampler is sent as a whole; the game draws from it, with the sampler's seed. Ranges
are checked where they are written, in configurations, not here: ML-Agents sends negative deviations, too.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Constant:
    """A number."""

    value: float


@dataclass(frozen=True)
class Uniform:
    """Drawn evenly from `minimum` to `maximum`."""

    minimum: float
    maximum: float
    seed: int
    """int32."""


@dataclass(frozen=True)
class Gaussian:
    """Drawn from a normal distribution."""

    mean: float
    st_dev: float
    seed: int
    """int32."""


@dataclass(frozen=True)
class MultiRangeUniform:
    """Drawn evenly from several intervals: the wider one is, the more often it is drawn from."""

    intervals: tuple[tuple[float, float], ...]
    """(minimum, maximum) of each."""
    seed: int
    """int32."""


ParameterValue = Constant | Uniform | Gaussian | MultiRangeUniform

_KINDS: Mapping[str, type[ParameterValue]] = {
    "constant": Constant,
    "uniform": Uniform,
    "gaussian": Gaussian,
    "multirangeuniform": MultiRangeUniform,
}


def to_plain(values: Mapping[str, ParameterValue]) -> dict[str, Any]:
    """Return values as plain ones, to travel as JSON."""
    names = {kind: name for name, kind in _KINDS.items()}
    return {key: {"kind": names[type(value)], **asdict(value)} for key, value in values.items()}


def from_plain(plain: Mapping[str, Any]) -> dict[str, ParameterValue]:
    """Read the output of `to_plain`, also with lists for tuples."""
    values: dict[str, ParameterValue] = {}
    for key, fields in plain.items():
        own = {name: value for name, value in fields.items() if name != "kind"}
        if "intervals" in own:
            own["intervals"] = tuple((minimum, maximum) for minimum, maximum in own["intervals"])
        values[key] = _KINDS[fields["kind"]](**own)
    return values
