"""Values of environment parameters: numbers, and samplers from which a game draws on request.

They are ML-Agents' four kinds. As JSON they have a `kind`, by which `ludus.reading` distinguishes them. A sampler is
sent as a whole; the game draws from it, with the sampler's seed. Ranges are checked where they are written, in
configurations, not here: ML-Agents sends negative deviations, too.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Constant:
    """A number."""

    value: float
    kind: Literal["constant"] = "constant"


@dataclass(frozen=True)
class Uniform:
    """Drawn evenly from `minimum` to `maximum`."""

    minimum: float
    maximum: float
    seed: int
    """int32."""
    kind: Literal["uniform"] = "uniform"


@dataclass(frozen=True)
class Gaussian:
    """Drawn from a normal distribution."""

    mean: float
    st_dev: float
    seed: int
    """int32."""
    kind: Literal["gaussian"] = "gaussian"


@dataclass(frozen=True)
class MultiRangeUniform:
    """Drawn evenly from several intervals: the wider one is, the more often it is drawn from."""

    intervals: tuple[tuple[float, float], ...]
    """(minimum, maximum) of each."""
    seed: int
    """int32."""
    kind: Literal["multirangeuniform"] = "multirangeuniform"


ParameterValue = Constant | Uniform | Gaussian | MultiRangeUniform
