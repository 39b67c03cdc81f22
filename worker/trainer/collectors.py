"""The interface between the learner and the collectors."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ludus.collector.arena import Arena
from ludus.collector.messages import OpponentAssignment, PolicySpec
from ludus.collector.segments import Segments
from ludus.protocol.spec import BehaviorSpec


class Collectors(Protocol):
    """`worker.collectors.pool.CollectorPool`; tests of learners use a recording one."""

    def admit(self, spec: BehaviorSpec, policy: PolicySpec, arena: Arena) -> None:
        """Accept an announced behavior."""

    def publish(self, behavior: str, version: int, weights: NDArray[np.float32]) -> None:
        """Make newer weights act."""

    def grant(self, behavior: str, round_number: int, steps: int) -> None:
        """Permit `steps` more answers, all counted into the round."""

    def grant_unrecorded(self, behavior: str) -> None:
        """Answer from now on without a limit and without recording."""

    def delivered_before(self, behavior: str, round_number: int, delivered: Sequence[tuple[int, int]]) -> None:
        """Count steps that the learner already has, of the round that is granted next and of later ones."""

    def reclaim(self, behavior: str, segments: Segments) -> None:
        """Free the blocks of delivered segments."""

    def assign_opponents(
        self, behavior: str, assignment: OpponentAssignment, weights: Mapping[int, NDArray[np.float32]]
    ) -> None:
        """Set the team that learns, and the policies of all others."""

    def reset(self) -> None:
        """Make every simulator begin new episodes."""
