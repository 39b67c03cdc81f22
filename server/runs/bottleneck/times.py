"""Where the newest time of an attempt went, as its trainer measures it."""

from dataclasses import astuple, dataclass, fields
from struct import Struct
from typing import Final, Self

_WHOLE: Final = {"at": "d", "steps": "q", "collectors": "i", "simulators": "i", "latest_simulator": "i"}
"""The fields that are packed without rounding, with their form of `struct`."""
_NONE: Final = -1
"""`latest_simulator` where no simulator is the latest."""


@dataclass(frozen=True, kw_only=True)
class TimeSpent:
    """Means over `seconds`. Shares are from 0 to 1.

    Simulators share one time: `away` + `waiting_for_...` + what is left, in which collectors act for them, is 1.
    """

    at: float
    """Seconds since 1970."""
    seconds: float
    steps: int
    """Agent steps of all behaviors in this time."""
    learning: float
    """Share of the trainer's time in updates."""
    checkpointing: float
    """Share of the trainer's time in work on checkpoints."""
    collectors: int
    simulators: int
    """That play."""
    busy: float
    """Share of the time in which the busiest collector computes. Time in which other processes keep it from a processor
    does not count.
    """
    waiting_for_learner: float
    """Share of the simulators' time in which agents wait for a reason of `ludus.collector.agent_waits`."""
    waiting_for_stragglers: float
    waiting_for_checkpoint: float
    waiting_for_network: float
    away: float
    """Share of the simulators' time between an answer and the next step, in the game and on the way."""
    game: float
    """Share of it in the game; all of `away` where no simulator says how long its game takes (Unity's do not)."""
    game_seconds: float
    """Of one step."""
    way_seconds: float
    """To the game and back: of the quickest step of each simulator, in the mean, because others also wait for a
    processor at either end; 0 where no simulator says how long its game takes.
    """
    latest_simulator: int | None
    """Number of the simulator that the others waited for the longest."""
    latest_simulator_share: float
    """Share of these waits that were for it."""

    def pack(self) -> bytes:
        """Return the values in 80 bytes, because each heartbeat writes them; shares and times are rounded."""
        return _PACKED.pack(*(_NONE if value is None else value for value in astuple(self)))

    @classmethod
    def unpack(cls, packed: bytes) -> Self | None:
        """Return the values of `pack`; None for the bytes of a release that has other fields."""
        if len(packed) != _PACKED.size:
            return None
        found = zip(fields(cls), _PACKED.unpack(packed), strict=True)
        values = {each.name: value if each.name in _WHOLE else round(value, 6) for each, value in found}
        latest = values["latest_simulator"]
        return cls(**{**values, "latest_simulator": None if latest == _NONE else latest})


_PACKED: Final = Struct("<" + "".join(_WHOLE.get(each.name, "f") for each in fields(TimeSpent)))
