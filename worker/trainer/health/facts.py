"""Facts about the health of a behavior, and the evidence that they are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ludus.config.behavior import ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec
from worker.trainer.health.divergence import KL_METRIC, Divergence
from worker.trainer.health.influence import Score
from worker.trainer.health.observed import Observed
from worker.trainer.health.played import Played

EXPLAINED_VARIANCE = "Losses/Explained Variance"
VALUE_LOSS = "Losses/Value Loss"
NEWEST_SHARE = 0.2
"""Weight of the newest update in the running means."""


class Fact(NamedTuple):
    """Something that a person should know (`ludus.schemas.Finding`)."""

    code: str
    message: str
    remedy: str
    figures: dict[str, Any]
    since: int | None = None
    """Step at which it began; None: when it was found."""


@dataclass
class Updates:
    """The measurements of a behavior's updates."""

    count: int = 0
    means: dict[str, float] = field(default_factory=dict)
    """Running means of some metrics."""
    greatest_kl: float = 0.0

    def add(self, measured: Mapping[str, float]) -> None:
        """Count an update."""
        self.count += 1
        self.greatest_kl = max(self.greatest_kl, measured.get(KL_METRIC, 0.0))
        for key, value in measured.items():
            if key in {EXPLAINED_VARIANCE, VALUE_LOSS} or key.endswith((" Policy Estimate", " Expert Estimate")):
                former = self.means.get(key, value)
                self.means[key] = former + NEWEST_SHARE * (value - former)


@dataclass
class Evidence:
    """All that is known of a behavior."""

    spec: BehaviorSpec
    config: ReinforcementConfig
    played: Played
    observed: Observed
    updates: Updates
    divergence: Divergence
    influence: dict[str, Score]
    lengths: list[int]
    """Shortest and longest demonstrated episode of GAIL; none without."""
    agents: int = 0
    """Most agents that have acted at once."""
    free: int = 0
    """Steps of the samples in which the agent had a choice."""
    step: int = 0
    """Steps learned from."""
    has_lessons: bool = False
    """Whether the game changes while the behavior learns, so that returns of different times are not compared."""
    ended: bool = False
    """Whether the run is over, so that there will be no more evidence."""

    @property
    def period(self) -> int:
        """Steps between two reviews."""
        return max(1, min(self.config.summary_freq, self.config.max_steps // 20))

    @property
    def is_late(self) -> bool:
        """Whether half of the steps are learned from, or all that there will be."""
        return self.ended or 2 * self.step >= self.config.max_steps

    @property
    def is_initialized(self) -> bool:
        """Whether the policy began with what another one had learned."""
        return self.config.init_path is not None or self.config.initialize_from is not None

    @property
    def improved(self) -> bool | None:
        """Whether returns are better than at the beginning; None where that cannot be told."""
        return None if self.has_lessons else self.played.episodes.improved()

    @property
    def strength(self) -> float | None:
        """Of the game's own rewards; None where they do not count."""
        extrinsic = self.config.reward_signals.extrinsic
        return None if extrinsic is None or not extrinsic.strength else extrinsic.strength
