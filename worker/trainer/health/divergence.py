"""Updates whose numbers are finite, and yet show that a policy may not learn any more.

Updates that are not finite, or explode, are rolled back (`worker.learning.algorithms.numeric_check`). The signs here
are finite and stay:

1. The entropy of a discrete branch, as a share of the greatest that its choices allow (masks included). A softmax
   without entropy has no gradient left, of the objective and of the entropy bonus: the policy can hardly change.
2. The standard deviation of the continuous actions (geometric mean over columns, and under SAC over states; before the
   squashing). The entropy itself is no measure there: that of a density is below 0 for any sigma below 0.24.
3. The KL divergence of an update of PPO or POCA: how far it has moved the policy from the one that acted.

An occurrence of a sign is over after `CALM` updates in a row without it. Only a limit that the user has set ends a run.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from torch import Tensor

from ludus.collector.heads import HALF_LOG_TWO_PI
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.state import State
from worker.learning.functional.distributions import branch_bounds

CALM: Final = 10
"""Updates in a row without a sign after which it is over."""
LIMIT_UPDATES: Final = 3
"""Updates in a row beyond a limit that end the run."""
KL_METRIC: Final = "Policy/Approximate KL"


class LimitCrossed(ArithmeticError):
    """A policy was beyond a limit of the behavior's `divergence` for `LIMIT_UPDATES` updates in a row."""


class _Reading(NamedTuple):
    """One measure after an update, with its limits."""

    name: str
    value: float
    warn_at: float | None
    stop_at: float | None
    sentence: str
    """The value in words."""
    falls: bool
    """Whether too low is bad, rather than too high."""

    def is_beyond(self, limit: float | None) -> bool:
        return limit is not None and (self.value < limit if self.falls else self.value > limit)


@dataclass
class Sign:
    """The state of one measure."""

    since: int | None = None
    """Step at which the present occurrence began; None where there is none."""
    began: int | None = None
    """Step at which the newest occurrence began, whether it is over or not."""
    calm: int = 0
    """Updates in a row within the limit, during an occurrence."""
    in_a_row: int = 0
    """Updates in a row beyond the limit that ends the run."""
    value: float = 0.0
    """The newest value beyond the warning."""
    latest: str = ""
    """The same in words."""


class Divergence:
    """The signs of one behavior."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self._spec = spec
        self.signs: dict[str, Sign] = {}
        """By measure: `branch 0`, ..., `sigma`, `KL`."""
        self.newest: dict[str, float] = {}
        """The newest value of each measure; of branches, the share of the possible entropy."""
        self._possible = [0.0] * len(spec.actions.discrete_branches)
        """Of each branch: the sum over steps of the logarithm of its allowed choices, the greatest entropy there."""
        self._steps = 0

    def updated(
        self, config: ReinforcementConfig, measured: Mapping[str, float], masks: Tensor | None, steps: int, step: int
    ) -> None:
        """Check the measurements of an update; `masks` (N, choices) are its round's. Raise `LimitCrossed`."""
        self._steps += steps
        sizes = self._spec.actions.discrete_branches
        for branch, (first, last) in enumerate(branch_bounds(sizes)):
            if masks is None:
                self._possible[branch] += steps * math.log(sizes[branch])
            else:
                allowed = masks[:, first:last].bool().sum(1).clamp(min=1)
                self._possible[branch] += float(allowed.double().log().sum())
        crossed = []
        for reading in self._readings(config, measured):
            self.newest[reading.name] = reading.value
            sign = self.signs.setdefault(reading.name, Sign())
            if reading.is_beyond(reading.warn_at):
                sign.calm, sign.value, sign.latest = 0, reading.value, reading.sentence
                if sign.since is None:
                    sign.since = sign.began = step
            elif sign.since is not None:
                sign.calm += 1
                sign.since = None if sign.calm >= CALM else sign.since
            sign.in_a_row = sign.in_a_row + 1 if reading.is_beyond(reading.stop_at) else 0
            if sign.in_a_row >= LIMIT_UPDATES:
                bound = "below" if reading.falls else "above"
                crossed.append(f"{reading.sentence}, {bound} the limit of {reading.stop_at:g}")
        if crossed:
            raise LimitCrossed(f"{' and '.join(crossed)} for {LIMIT_UPDATES} updates in a row")

    @property
    def lost(self) -> dict[str, Sign]:
        """The signs that the policy hardly explores any more."""
        return {name: sign for name, sign in self.signs.items() if name != "KL" and sign.since is not None}

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        return {
            "signs": {name: asdict(sign) for name, sign in self.signs.items()},
            "newest": dict(self.newest),
            "possible": list(self._possible),
            "steps": self._steps,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from the result of `state_dict`."""
        self.signs = {name: Sign(**sign) for name, sign in state["signs"].items()}
        self.newest, self._possible, self._steps = dict(state["newest"]), list(state["possible"]), state["steps"]

    def _readings(self, config: ReinforcementConfig, measured: Mapping[str, float]) -> Iterator[_Reading]:
        """Yield the measures of an update with their limits."""
        limits = config.divergence
        for branch, entropy in self._branch_entropies(measured):
            possible = self._possible[branch] / max(self._steps, 1)
            if possible > 0:  # masks may leave no choice at all
                yield _Reading(
                    f"branch {branch}",
                    entropy / possible,
                    limits.warn_entropy_below,
                    limits.stop_entropy_below,
                    f"the entropy of branch {branch} is {entropy:.2g} of {possible:.3g} possible nats, "
                    f"a share of {entropy / possible:.2g}",
                    falls=True,
                )
        if self._spec.actions.continuous_size:
            alone = not self._spec.actions.discrete_branches
            entropy_of = measured.get("Policy/Entropy" if alone else "Policy/Continuous Entropy")
            if entropy_of is not None:
                sigma = math.exp(min(entropy_of - HALF_LOG_TWO_PI - 0.5, 700.0))  # `gaussian_entropy`, solved
                yield _Reading(
                    "sigma",
                    sigma,
                    limits.warn_sigma_below,
                    limits.stop_sigma_below,
                    f"the standard deviation of the continuous actions is {sigma:.2g}",
                    falls=True,
                )
        if KL_METRIC in measured:
            kl = measured[KL_METRIC]
            yield _Reading(
                "KL", kl, limits.warn_kl_above, limits.stop_kl_above, f"{KL_METRIC} is {kl:.3g} nats", falls=False
            )

    def _branch_entropies(self, measured: Mapping[str, float]) -> Iterator[tuple[int, float]]:
        """Yield each branch with its entropy; an only head has no metric beside the policy's."""
        count = len(self._spec.actions.discrete_branches)
        for branch in range(count):
            keys = [f"Policy/Branch {branch} Entropy"]
            if count == 1:
                keys += ["Policy/Discrete Entropy"]
                keys += [] if self._spec.actions.continuous_size else ["Policy/Entropy"]
            entropy = next((measured[key] for key in keys if key in measured), None)
            if entropy is not None:
                yield branch, entropy
