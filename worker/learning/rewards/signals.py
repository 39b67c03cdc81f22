"""All reward signals of a behavior as one axis: rewards, values, returns and discounts carry `S` columns.

Names are the configuration's: `extrinsic`, `curiosity`, `gail`, `gail_2`, ..., `rnd`, in the order in which
`RewardSignals.active` gives them.

Dimensions: `N` steps, `S` signals.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ludus.config.rewards import RewardSignals
from ludus.config.signal import RewardSignalConfig
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.experience.transitions import Transitions
from worker.learning.algorithms.training_state import Changed
from worker.learning.rewards.scale import RewardScale
from worker.learning.rewards.signal import RewardSignal


class ExtrinsicReward(RewardSignal):
    """The game's own rewards: the agent's, and its group's.

    As in ML-Agents 1.1.0 (`torch_entities/components/reward_providers/extrinsic_reward_provider.py`) their sum is what
    PPO and SAC learn from; POCA adds the mates' rewards. Cumulative rewards, as the metrics show them, are without
    groups'. Deviation: ML-Agents logs a warning when PPO or SAC first sees a group reward. Here it counts in full for
    the agent that received it, so there is no warning.
    """

    def evaluate(self, transitions: Transitions) -> Float[Tensor, " N"]:
        """Return the agent's own rewards plus its group's."""
        return transitions.rewards + transitions.group_rewards


class NamedSignal(NamedTuple):
    """A signal as the configuration has it."""

    name: str
    strength: float
    gamma: float
    signal: RewardSignal
    scale: RewardScale | None = None
    """With `normalize_reward`."""

    @classmethod
    def of(cls, name: str, config: RewardSignalConfig, signal: RewardSignal, device: torch.device) -> "NamedSignal":
        """Return a signal with what its configuration says of it."""
        scale = RewardScale(config.gamma, device) if config.normalize_reward else None
        return cls(name, config.strength, config.gamma, signal, scale)


class Observed(NamedTuple):
    """The rewards of a round."""

    earned: Float[Tensor, "N S"]
    """After each signal's strength, and never scaled: what is reported."""
    rewards: Float[Tensor, "N S"]
    """The rewards of the update, as `SignalSet.evaluate` returns them."""


class SignalSet:
    """The signals of one behavior, in the order of the value heads."""

    def __init__(self, signals: Sequence[NamedSignal], device: torch.device) -> None:
        self.named = tuple(signals)
        self.names = tuple(signal.name for signal in signals)
        self.strength: Tensor = torch.tensor([signal.strength for signal in signals], device=device)
        """(S,): the factor on each signal's rewards."""
        self.gamma: Tensor = torch.tensor([signal.gamma for signal in signals], device=device)
        """(S,): the discount factor of each."""
        ignores = [signal.signal.ignores_termination for signal in signals]
        self.ignores_termination: Tensor = torch.tensor(ignores, device=device)
        """(S,): see `RewardSignal`."""
        self.learns = any(signal.signal.learns for signal in signals)
        """Whether `update` does anything."""
        self.normalizes = any(signal.scale is not None for signal in signals)
        """Whether `observe` changes anything."""

    def __len__(self) -> int:
        return len(self.named)

    @torch.no_grad()
    def evaluate(self, transitions: Transitions) -> Float[Tensor, "N S"]:
        """Return each signal's reward of each step, scaled where `normalize_reward` says so, after its strength."""
        return self._scaled([item.signal.evaluate(transitions) for item in self.named])

    @torch.no_grad()
    def observe(self, rollout: Rollout, transitions: Transitions) -> Observed:
        """Add a round, whose steps are `transitions`, to the statistics of `normalize_reward`; return its rewards.

        An algorithm calls it once for each round, before it learns from any step of it.
        """
        unscaled = [item.signal.evaluate(transitions) for item in self.named]
        for item, rewards in zip(self.named, unscaled, strict=True):
            if item.scale is not None:
                item.scale.observe(rollout, rewards)
        earned = torch.stack(unscaled, 1) * self.strength
        return Observed(earned, self._scaled(unscaled) if self.normalizes else earned)

    def _scaled(self, unscaled: list[Float[Tensor, " N"]]) -> Float[Tensor, "N S"]:
        pairs = zip(self.named, unscaled, strict=True)
        scaled = [rewards if item.scale is None else item.scale.scaled(rewards) for item, rewards in pairs]
        return torch.stack(scaled, 1) * self.strength

    def update(self, transitions: Transitions) -> dict[str, Float[Tensor, ""]]:
        """Train every signal by one step on some transitions; return their measurements, by metric name."""
        measured: dict[str, Tensor] = {}
        for item in self.named:
            measured |= item.signal.update(transitions)
        return measured

    def is_finite(self) -> Bool[Tensor, ""]:
        """Return whether all weights of all signals are finite, as a tensor on the device."""
        return torch.stack([item.signal.is_finite().to(self.gamma.device) for item in self.named]).all()

    def invalid_signal(self) -> str | None:
        """Return the name of the first signal with a weight that is not finite. Waits for the device."""
        return next((item.name for item in self.named if not bool(item.signal.is_finite())), None)

    @property
    def changed(self) -> list[Changed]:
        """The parts of all signals that `update` and `observe` change."""
        scales = [item.scale for item in self.named if item.scale is not None]
        return [*(part for item in self.named for part in item.signal.changed), *scales]

    def state_dict(self) -> State:
        """Return the state of each signal, by name."""
        return {
            item.name: item.signal.state_dict() | ({} if item.scale is None else {"scale": item.scale.state_dict()})
            for item in self.named
        }

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken."""
        for item in self.named:
            item.signal.load_state_dict(state[item.name])
            if item.scale is not None:
                item.scale.load_state_dict(state[item.name]["scale"])


def title(name: str) -> str:
    """Return how metrics call a signal: ML-Agents capitalises its name (`Policy/Gail Reward`)."""
    return name.capitalize().replace("_", " ")


def extrinsic_alone(section: RewardSignals, device: torch.device) -> SignalSet:
    """Return the game's own rewards as the only signal, which needs neither networks nor demonstrations."""
    extrinsic = section.extrinsic
    if extrinsic is None or len(section.active()) > 1:
        raise ValueError("signals that learn have to be built (worker.learning.build.build_signals)")
    return SignalSet([NamedSignal.of("extrinsic", extrinsic, ExtrinsicReward(), device)], device)
