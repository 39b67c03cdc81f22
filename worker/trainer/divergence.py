"""Signs that a behavior does not learn any more, although every number of its updates is finite.

Updates that are not finite, or explode, are rolled back (`worker.learning.algorithms.numeric_check`). The signs here
are finite and stay:

1. The entropy of a discrete branch, as a share of the greatest that its choices allow (masks included). A softmax
   without entropy has no gradient left, of the objective and of the entropy bonus: the policy can hardly change.
2. The standard deviation of the continuous actions (geometric mean over columns, and under SAC over states; before the
   squashing). The entropy itself is no measure there: that of a density is below 0 for any sigma below 0.24.
3. The KL divergence of an update of PPO or POCA: how far it has moved the policy from the one that acted.
4. Episodes of different length where GAIL rewards an agent for each step that it survives.

A policy that has learned to do one thing for certain has no entropy either, so signs are warnings. Each is reported
once per occurrence: it is over after `CALM` updates in a row without it. Only a limit that the user has set ends a run.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ludus.collector.heads.head import HALF_LOG_TWO_PI
from ludus.demonstrations import Demonstration
from ludus.protocol.spec import BehaviorSpec
from server.config.behavior import ReinforcementConfig, SACConfig
from server.config.rewards import GAILConfig
from worker.learning.functional.distributions import branch_bounds

CALM: Final = 10
"""Updates in a row without a sign after which it is over."""
LIMIT_UPDATES: Final = 3
"""Updates in a row beyond a limit that end the run."""
KL_METRIC: Final = "Policy/Approximate KL"

ReportEvent = Callable[[str, str, dict[str, object]], None]
"""Reports an event: its name, a sentence, the facts."""


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
class _Sign:
    """The state of one measure."""

    since: int | None = None
    """Step at which the present occurrence began; None where there is none."""
    calm: int = 0
    """Updates in a row within the limit, during an occurrence."""
    updates: int = 0
    """Updates beyond the warning, in all."""
    in_a_row: int = 0
    """Updates in a row beyond the limit that ends the run."""
    latest: str = ""
    """The newest value beyond the warning, in words."""


def whole_lengths(demonstration: Demonstration) -> NDArray[np.int64]:
    """Return the lengths of the episodes that were recorded from their beginning to their end."""
    lengths = demonstration.lengths
    last = demonstration.starts + lengths - 1
    ended = demonstration.terminated[last] | demonstration.truncated[last]
    return np.asarray(lengths[demonstration.from_start & ended], np.int64)


class DivergenceMonitor:
    """Watches one behavior."""

    def __init__(self, spec: BehaviorSpec, report: ReportEvent) -> None:
        self._spec = spec
        self._report = report
        self._signs: dict[str, _Sign] = {}
        self._possible = [0.0] * len(spec.actions.discrete_branches)
        """Of each branch: the sum over steps of the logarithm of its allowed choices, the greatest entropy there."""
        self._steps = 0
        self._length: int | None = None
        """Decisions of the first episode."""
        self._varies = False
        """Whether episodes of different length were reported."""

    def updated(
        self, config: ReinforcementConfig, measured: Mapping[str, float], masks: Tensor | None, steps: int, step: int
    ) -> None:
        """Check the measurements of an update; `masks` (N, choices) are those of its round of `steps` steps.

        Raise `LimitCrossed` where a limit of the configuration says so.
        """
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
            sign = self._signs.setdefault(reading.name, _Sign())
            if reading.is_beyond(reading.warn_at):
                sign.calm, sign.latest = 0, reading.sentence
                sign.updates += 1
                if sign.since is None:
                    sign.since = step
                    self._warn(config, reading, step)
            elif sign.since is not None:
                sign.calm += 1
                sign.since = None if sign.calm >= CALM else sign.since
            sign.in_a_row = sign.in_a_row + 1 if reading.is_beyond(reading.stop_at) else 0
            if sign.in_a_row >= LIMIT_UPDATES:
                bound = "below" if reading.falls else "above"
                crossed.append(f"{reading.sentence}, {bound} the limit of {reading.stop_at:g}")
        if crossed:
            raise LimitCrossed(f"{' and '.join(crossed)} for {LIMIT_UPDATES} updates in a row")

    def episodes_ended(self, config: ReinforcementConfig, lengths: NDArray[np.int64]) -> None:
        """Compare the lengths of episodes, of the game or demonstrated, where GAIL ends its returns with them."""
        if self._varies or not any(
            isinstance(signal, GAILConfig) and not signal.ignore_done for _, signal in config.reward_signals.active()
        ):
            return
        for length in lengths.tolist():
            self._length = length if self._length is None else self._length
            if length != self._length:
                self._varies = True
                self._report(
                    "gail_variable_horizon",
                    f"{self._spec.behavior}: episodes differ in length ({self._length} and {length} decisions, of the "
                    "game and of demonstrations together). When an episode ends says something about the reward that "
                    "GAIL is to find out, and GAIL pays for every step that is survived: the policy may learn to live "
                    "long, or to put off the end, without resembling the expert. Give all episodes one length (go on "
                    "after success or failure until a time limit), or set `ignore_done: true` in `reward_signals.gail`",
                    {"behavior": self._spec.behavior, "lengths": [self._length, length]},
                )
                return

    def summary(self) -> list[str]:
        """Return the signs that the end of the run mentions, as sentences without a full stop."""
        found = []
        for name, sign in self._signs.items():
            if name == "KL" and sign.updates:
                times = "1 update" if sign.updates == 1 else f"{sign.updates} updates"
                found.append(f"{sign.latest}, the latest of {times} that moved the policy too far")
            elif name != "KL" and sign.since is not None:
                found.append(f"{sign.latest}, too little since step {sign.since:,}")
        return [f"{self._spec.behavior}: {sentence}" for sentence in found]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, so that nothing is reported twice."""
        return {
            "signs": {name: asdict(sign) for name, sign in self._signs.items()},
            "possible": list(self._possible),
            "steps": self._steps,
            "length": self._length,
            "varies": self._varies,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the result of `state_dict`."""
        self._signs = {name: _Sign(**sign) for name, sign in state["signs"].items()}
        self._possible, self._steps = list(state["possible"]), state["steps"]
        self._length, self._varies = state["length"], state["varies"]

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

    def _warn(self, config: ReinforcementConfig, reading: _Reading, step: int) -> None:
        """Report that a measure has crossed the warning limit."""
        if reading.falls:
            name = "entropy_collapsed"
            means = (
                f"below {reading.warn_at:g}: the policy hardly explores any more, and hardly changes. That is fine if "
                "the task is solved; otherwise"
            )
            gain = "`init_entcoef`" if isinstance(config, SACConfig) else "`beta`"
            remedy = f"raise {gain}, lower `learning_rate`"
        else:
            name = "kl_exploded"
            means = (
                f"above {reading.warn_at:g}: one update has made another policy out of the one that acted. If "
                "it does not recover,"
            )
            remedy = "lower `learning_rate` or `num_epoch`, raise `batch_size`, or set `max_grad_norm`"
        self._report(
            name,
            f"{self._spec.behavior}, step {step:,}: {reading.sentence}, {means} {remedy}, and go on from an "
            "earlier checkpoint (`ludus run branch`)",
            {
                "behavior": self._spec.behavior,
                "measure": reading.name,
                "value": reading.value,
                "limit": reading.warn_at,
                "step": step,
            },
        )
