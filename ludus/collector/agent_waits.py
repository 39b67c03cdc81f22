"""Measures what the agents of a runner wait for. The bottleneck of a run is found from these measurements.

An agent is with its game (it acts), or it has asked for an action. Most asking agents are answered in the same turn.
Where they are not, their wait has one of the reasons below, and counts with the share of the agents that share it: one
simulator of four that waits for two seconds is half a second of all.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

WaitReason: TypeAlias = Literal["learner", "stragglers", "checkpoint", "network"]
LEARNER: Final = "learner"
"""The round is collected, and the next one not granted; or its weights are not there."""
STRAGGLERS: Final = "stragglers"
"""The round's quota is used, and steps of other simulators have not come back."""
CHECKPOINT: Final = "checkpoint"
"""A checkpoint is taken."""
NETWORK: Final = "network"
"""The network of an edge collector is slower than its games: segments wait to be sent."""


@dataclass(slots=True)
class AgentWaits:
    """The waits of one runner's agents since the last `take`."""

    reason: WaitReason | None = None
    """The reason why some agents wait now; None: no agent waits."""
    _share: float = 0.0
    """Of the agents, that wait for it."""
    _since: float = 0.0
    _seconds: defaultdict[WaitReason, float] = field(default_factory=lambda: defaultdict(float))
    _straggling: float = 0.0
    """Seconds of the present wait for stragglers."""
    _delays: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of all agents, by the simulator whose step came last."""

    def observe(self, reason: WaitReason | None, share: float, now: float, last: int | None) -> None:
        """Record why a share of the agents waits from now on; `last` is the simulator of the newest step, if any."""
        self._count(now)
        if self.reason == STRAGGLERS and reason != STRAGGLERS:
            if last is not None:
                self._delays[last] += self._straggling
            self._straggling = 0.0
        self.reason, self._share = reason, share

    def delayed_by(self, simulator: int, now: float) -> None:
        """Record that the agents do not wait for this simulator any longer, whose steps have not come."""
        self._count(now)
        self._delays[simulator] += self._straggling
        self._straggling = 0.0

    def take(self, now: float) -> tuple[dict[WaitReason, float], dict[int, float]]:
        """Return the seconds since the last call by reason, and by straggler."""
        self._count(now)
        seconds, self._seconds = self._seconds, defaultdict(float)
        delays, self._delays = self._delays, defaultdict(float)
        return seconds, delays

    def _count(self, now: float) -> None:
        if self.reason is not None:
            waited = self._share * (now - self._since)
            self._seconds[self.reason] += waited
            if self.reason == STRAGGLERS:
                self._straggling += waited
        self._since = now
