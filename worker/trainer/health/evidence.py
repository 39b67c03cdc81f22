"""The evidence on a behavior's health: what it has played and seen, and what its updates have measured.

What is kept in a checkpoint is plain (numbers, lists, dicts, arrays), so that a resumed run finds nothing twice.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ludus.config.trainer import ReinforcementConfig
from ludus.play.checks.influence import Score
from ludus.play.checks.observed import Observed
from ludus.play.checks.played import Episodes, Rewards
from ludus.play.checks.steps import Steps
from ludus.protocol.spec import BehaviorSpec
from server.ladders.refs import PlayedMatch
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.learning.algorithms.ppo_stats import ACTING_KL, STALE_SHARE
from worker.trainer.health.divergence import KL_METRIC, Divergence

EXPLAINED_VARIANCE = "Losses/Explained Variance"
VALUE_LOSS = "Losses/Value Loss"
FOLLOWED = frozenset({EXPLAINED_VARIANCE, VALUE_LOSS, ACTING_KL, STALE_SHARE})
"""Metrics with a running mean, beside GAIL's estimates."""
NEWEST_SHARE = 0.2
"""Weight of the newest update in the running means."""
STALE = 0.01
"""Share of steps that are too old to be learned from, above which a run wastes experience."""
DISAGREEMENT = 1e-3
"""`Policy/Acting KL` in nats from which the ratios of PPO are wrong by about as much as a small update changes them: a
standard deviation of 4 %. In toys rounding costs 1e-16 to 1e-13, and pictures in bfloat16 up to 2e-7.
"""


def steps_of(rollout: Rollout) -> Steps:
    """Return the columns of a rollout that the checks look at, as arrays."""
    masks = rollout.action_masks
    return Steps(
        tuple(values.numpy() for values in rollout.observations),
        tuple(values.numpy() for values in rollout.next_observations),
        rollout.lengths.numpy(),
        rollout.endings.numpy(),
        (rollout.rewards + rollout.group_rewards).numpy(),
        rollout.continuous.numpy(),
        rollout.discrete.numpy(),
        rollout.log_probs.numpy(),
        None if masks is None else masks.numpy(),
    )


@dataclass
class Matches:
    """The matches of self-play, as the team that learns saw them, and those of its opponents."""

    count: int = 0
    drawn: int = 0
    truncated: int = 0
    rated: int = 0
    won: int = 0
    opponents: int = 0
    """Episodes of opponents that ended."""
    opponents_won: int = 0

    def add(self, match: PlayedMatch) -> None:
        """Count a match."""
        self.count += 1
        self.drawn += match.outcome == "draw"
        self.won += match.outcome == "win"
        self.truncated += match.truncated
        self.rated += match.rated


@dataclass
class Updates:
    """The measurements of a behavior's updates."""

    count: int = 0
    means: dict[str, float] = field(default_factory=dict)
    """Running means of some metrics."""
    greatest_kl: float = 0.0
    dropped_rounds: int = 0
    """Rounds in a row, up to the newest one, whose steps were all too old to be learned from."""

    @property
    def drops_steps(self) -> bool:
        """Whether a good part of the newest rounds was too old to be learned from."""
        return self.means.get(STALE_SHARE, 0.0) > STALE

    @property
    def disagrees(self) -> bool:
        """Whether the policy that acts is not the one that learns."""
        return self.means.get(ACTING_KL, 0.0) > DISAGREEMENT

    def add(self, measured: Mapping[str, float]) -> None:
        """Count an update, or a round of which nothing was learned."""
        is_dropped = measured.get(STALE_SHARE) == 1.0
        self.dropped_rounds = self.dropped_rounds + 1 if is_dropped else 0
        self.count += not is_dropped
        self.greatest_kl = max(self.greatest_kl, measured.get(KL_METRIC, 0.0))
        for key, value in measured.items():
            if key in FOLLOWED or key.endswith((" Policy Estimate", " Expert Estimate")):
                former = self.means.get(key, value)
                self.means[key] = former + NEWEST_SHARE * (value - former)


@dataclass
class Evidence:
    """All that is known of a behavior."""

    spec: BehaviorSpec
    config: ReinforcementConfig
    step: int
    """Steps learned from."""
    has_lessons: bool
    """Whether the game changes while the behavior learns, so that returns of different times are not compared."""
    episodes: Episodes = field(default_factory=Episodes)
    rewards: Rewards = field(default_factory=Rewards)
    matches: Matches = field(default_factory=Matches)
    updates: Updates = field(default_factory=Updates)
    influence: dict[str, Score] = field(default_factory=dict)
    """By column or branch."""
    lengths: list[int] = field(default_factory=list)
    """Shortest and longest demonstrated episode of GAIL; none without."""
    agents: int = 0
    """Most agents that have acted at once."""
    free: int = 0
    """Steps of the samples in which the agent had a choice."""
    ended: bool = False
    """Whether the run is over, so that there will be no more evidence."""

    def __post_init__(self) -> None:
        self.observed = Observed(self.spec)
        self.divergence = Divergence(self.spec)

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
        return None if self.has_lessons else self.episodes.improved()

    @property
    def strength(self) -> float | None:
        """Of the game's own rewards; None where they do not count."""
        extrinsic = self.config.reward_signals.extrinsic
        return None if extrinsic is None or not extrinsic.strength else extrinsic.strength

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        return {
            "played": {name: asdict(getattr(self, name)) for name in ("episodes", "rewards", "matches")},
            "observed": self.observed.state_dict(),
            "updates": asdict(self.updates),
            "divergence": self.divergence.state_dict(),
            "influence": {name: list(vars(score).values()) for name, score in self.influence.items()},
            "lengths": list(self.lengths),
            "agents": self.agents,
            "free": self.free,
            "step": self.step,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from the result of `state_dict`."""
        played = state["played"]
        self.episodes, self.rewards = Episodes(**played["episodes"]), Rewards(**played["rewards"])
        self.matches, self.updates = Matches(**played["matches"]), Updates(**state["updates"])
        self.observed.load_state_dict(state["observed"])
        self.divergence.load_state_dict(state["divergence"])
        self.influence = {name: Score(*values) for name, values in state["influence"].items()}
        self.lengths, self.agents, self.step = list(state["lengths"]), state["agents"], state["step"]
        self.free = state.get("free", self.rewards.steps)  # of a checkpoint that does not know: all
