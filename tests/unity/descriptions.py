"""What a Unity build consists of, as far as a trainer can tell: its package, behaviors, sensors and faults."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

CAPABILITIES = {
    "baseRLCapabilities": (1, 0),
    "concatenatedPngObservations": (1, 1),
    "compressedChannelMapping": (1, 2),
    "hybridActions": (1, 3),
    "trainingAnalytics": (1, 4),
    "variableLengthObservation": (1, 5),
    "multiAgentGroups": (1, 5),
}
"""By the version of the communication API that brought them."""


@dataclass(frozen=True)
class Package:
    """A release of the C# package com.unity.ml-agents."""

    version: str = "3.0.0"
    communication: str = "1.5.0"
    channels_first: bool = True
    """Whether images have the shape (channels, height, width); up to 2.3 it was (height, width, channels)."""

    def has(self, capability: str) -> bool:
        """Whether this release can do that."""
        major, minor, _ = self.communication.split(".")
        return (int(major), int(minor)) >= CAPABILITIES[capability]


PACKAGES = {
    package.version: package
    for package in (Package(), Package("2.3.0-exp.3", channels_first=False), Package("1.0.8", "1.0.0", False))
}


@dataclass(frozen=True)
class Sensor:
    """What an agent perceives with."""

    name: str = "VectorSensor"
    kind: Literal["vector", "visual", "png", "buffer"] = "vector"
    """Plain numbers, uncompressed image, compressed image, or a list of entities of variable length."""
    shape: tuple[int, ...] = (8,)
    """(size), (channels, height, width) in this order whatever the package, or (entities, size)."""
    mapping: tuple[int, ...] = ()
    """Of a png: which channel of the image each channel of the PNG files belongs to, negative = none."""
    goal: bool = False
    shows_cue: bool = True
    """Whether it tells the agent what to do; noise otherwise."""
    black: bool = False
    """Of an image: nothing to be seen, as from a camera of a process without graphics."""


@dataclass(frozen=True)
class Behavior:
    """A behavior and the life of its agents. Lengths are in steps of the academy.

    The task is the same everywhere: a cue, which the sensors show, says what to do. Every continuous action shall be
    -1 or 1, every branch shall take one choice; the reward is the share of what is right, divided by the period.
    """

    name: str = "Learner?team=0"
    agents: int = 1
    continuous: int = 0
    branches: tuple[int, ...] = ()
    sensors: tuple[Sensor, ...] = (Sensor(),)
    masked: bool = False
    """Forbid one wrong choice of each branch at every second decision; an agent's first decision has no mask."""
    decision_period: int = 1
    """Every k-th step is decided; the action is repeated in between."""
    staggered: bool = False
    """Agents decide at different steps of the period."""
    episode_length: int = 10
    """After so many steps the game ends the episode (EndEpisode); 0: never."""
    jitter: int = 0
    """Episodes are up to so many steps longer, at random."""
    max_step: int = 0
    """After so many steps the episode is cut (MaxStep); 0: never."""
    episodes_per_life: int = 0
    """After so many episodes the agent is disabled, and a new one with a new id takes its place; 0: never."""
    absence: int = 2
    """So long the place is empty."""
    group_size: int = 0
    """So many agents are a group: they begin and end together, and their reward is the group's."""
    casualties: bool = False
    """In the middle of every episode one member of each group dies; its place is filled when the next one begins."""
    appears_at: int = 0
    """The step at which the first agents are there."""

    def __post_init__(self) -> None:
        if self.casualties and self.group_size < 2:
            raise ValueError(f"{self.name}: a group that one can leave has at least two members")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Behavior":
        """Build one from the fields, with sensors as objects and tuples as lists."""
        known = dict(fields)
        if "sensors" in known:
            known["sensors"] = tuple(
                Sensor(**{key: _hashable(value) for key, value in sensor.items()}) for sensor in known["sensors"]
            )
        return cls(**{key: _hashable(value) for key, value in known.items()})


def without_graphics(behavior: Behavior) -> Behavior:
    """Return what is left of a behavior with `-nographics`."""
    return replace(behavior, sensors=tuple(replace(sensor, black=True) for sensor in behavior.sensors))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Fault = Literal[
    "garbage",  # bytes that are no message
    "hang",  # stays connected, and says nothing more; at 2: the second call is missing
    "pause",  # the same, for `seconds`
    "vanish",  # closes the connection without a word
    "empty",  # messages without agents from here on
    "not_announced",  # agents of behaviors that are never announced
    "not_training",  # announces behaviors that are not for training
    "nan_reward",
    "nan_observation",
    "wrong_shape",  # an observation that is longer than announced
    "oversized",  # a message with `size` bytes too many
]


@dataclass(frozen=True)
class Trouble:
    """What the player does wrong, and when."""

    fault: Fault
    at: int = 3
    """The number of the message: 1 and 2 are the handshake, 3 is the first with agents."""
    seconds: float = 0.0
    size: int = 0
