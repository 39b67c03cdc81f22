"""Behavior specs: observations and actions, shared by simulators, collectors and learners.

Plain immutable values without I/O. `ludus.protocol.codec` turns them into protobuf messages and back.
"""

import re
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Literal

TEAM = re.compile(r"(?:^|[?&])team=(-?\d{1,9})(?=$|&)", re.ASCII)


class ObservationType(IntEnum):
    """Purpose of an observation. The values are those of `ludus.v1.ObservationType`."""

    DEFAULT = 1
    GOAL_SIGNAL = 2


class DimensionProperty(IntEnum):
    """Meaning of a dimension. The values are ML-Agents' bit values."""

    UNSPECIFIED = 0
    NONE = 1
    TRANSLATIONAL_EQUIVARIANCE = 2
    VARIABLE_SIZE = 4


@dataclass(frozen=True, slots=True)
class ObservationSpec:
    """One observation of an agent."""

    shape: tuple[int, ...]
    """Shape for one agent: `(size,)`, `(channels, height, width)` or `(entities, size)`."""
    name: str = ""
    dtype: Literal["float32", "uint8"] = "float32"
    type: ObservationType = ObservationType.DEFAULT
    dimension_properties: tuple[DimensionProperty, ...] = ()
    """As many as `shape` has, or none."""

    @property
    def size(self) -> int:
        """Number of elements for one agent."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """Continuous columns in [-1, 1], discrete branches, or both."""

    continuous_size: int = 0
    discrete_branches: tuple[int, ...] = ()
    """Number of choices of each branch."""

    @property
    def mask_size(self) -> int:
        """Width of an action mask: the choices of all branches together."""
        return sum(self.discrete_branches)


@dataclass(frozen=True, slots=True)
class BehaviorSpec:
    """The observations and actions of a behavior. Two simulators of a run must announce equal specs under one name."""

    name: str
    """As announced; a team may follow as `Striker?team=1`."""
    observations: tuple[ObservationSpec, ...]
    actions: ActionSpec
    game_layout: str = field(default="", compare=False)
    """Text of the adapter, which exported models carry: it describes the order of inputs and actions for the engine."""

    @property
    def behavior(self) -> str:
        """The name without its team: the key in a run's configuration."""
        return self.name.partition("?")[0]

    @property
    def team(self) -> int:
        """The team in the name; 0 where none is named."""
        return team_of(self.name)


def team_of(name: str) -> int:
    """Return the team in a behavior's name (`Striker?team=1`); 0 without a team, or if it is not a number."""
    team = TEAM.search(name.partition("?")[2])
    return int(team[1]) if team else 0


_NO_FILE = re.compile(r"""[\x00-\x1f<>:"/\\|?*]|^[.\s]+|[.\s]+$|=(?=[0-9A-F]{2})""")
"""Parts of a name that a file system refuses or reads as a path, and what would look like their replacement."""


def file_name(behavior: str) -> str:
    """Return the name of a behavior's files: its own, where what cannot stand there becomes `=` and UTF-8 bytes."""
    return _NO_FILE.sub(lambda match: "".join(f"={byte:02X}" for byte in match[0].encode()), behavior)
