"""Population based training (Jaderberg et al. 2017, arXiv 1711.09846): which member gives up, and what takes its place.

Members train at once, each with a setting of its own. At every interval one that is among the worst is replaced:
another run begins with the checkpoint of one of the best (exploit), and with its setting, a little changed (explore).
Pure arithmetic.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from server.kit.db.texts import JsonObject
from server.lifecycle.experiments.requests import Parameter, Population, Scalar


@dataclass(frozen=True)
class Member:
    """A member of the population as of its newest report."""

    number: int
    """Of its trial."""
    value: float
    """Of the objective; higher is better."""


def best_members(members: Sequence[Member], quantile: float) -> Sequence[Member]:
    """Return the best share of members, at least one, the best first."""
    ordered = sorted(members, key=lambda member: (-member.value, member.number))
    return ordered[: max(1, math.floor(len(ordered) * quantile))]


def gives_up(number: int, members: Sequence[Member], quantile: float) -> bool:
    """Return whether a member is among the worst share, while one of the best has a higher value."""
    ordered = sorted(members, key=lambda member: (member.value, member.number))
    worst = ordered[: math.floor(len(ordered) * quantile)]
    values = {member.number: member.value for member in members}
    return any(member.number == number for member in worst) and values[number] < ordered[-1].value


def explored(
    setting: Mapping[str, object], parameters: Mapping[str, Parameter], rule: Population, random: np.random.Generator
) -> JsonObject:
    """Return a setting near another one: each value is moved by a factor or to a neighbour, or drawn anew."""
    return {
        path: _drawn(parameter, random)
        if random.random() < rule.resample
        else _moved(setting[path], parameter, rule, random)
        for path, parameter in parameters.items()
    }


def _drawn(parameter: Parameter, random: np.random.Generator) -> Scalar:
    if parameter.values is not None or parameter.step is not None:
        grid = parameter.grid
        return grid[int(random.integers(len(grid)))]
    assert parameter.min is not None
    assert parameter.max is not None
    if parameter.scale == "log":
        value = math.exp(random.uniform(math.log(parameter.min), math.log(parameter.max)))
    else:
        value = random.uniform(parameter.min, parameter.max)
    return _within(value, parameter)


def _moved(value: object, parameter: Parameter, rule: Population, random: np.random.Generator) -> Scalar:
    """Return a neighbour in a list or on a grid; in a range the value times a factor."""
    if parameter.values is not None or parameter.step is not None:
        grid = parameter.grid
        place = grid.index(value) + (1 if random.random() < 0.5 else -1)  # type: ignore[arg-type]  # one of them
        return grid[min(max(place, 0), len(grid) - 1)]
    assert isinstance(value, int | float)
    moved = value * rule.factors[int(random.integers(len(rule.factors)))]
    if parameter.is_whole and round(moved) == value:
        moved = value + (1 if moved > value else -1)
    return _within(moved, parameter)


def _within(value: float, parameter: Parameter) -> float:
    assert parameter.min is not None
    assert parameter.max is not None
    inside = min(max(value, parameter.min), parameter.max)
    return round(inside) if parameter.is_whole else inside
