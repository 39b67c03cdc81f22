"""Curiosity (ICM, Pathak et al. 2017, https://arxiv.org/abs/1705.05363): reward for prediction errors.

Features `phi` of observations are learned so that the action between two observations can be predicted (inverse model:
the features then ignore what the agent does not influence); a forward model predicts the next features:

    reward = 0.5 * |phi(s') - forward(phi(s), a)|^2
    loss = 10 * (0.2 * mean reward + 0.8 * mean error of the inverse model)

As in ML-Agents 1.1.0 (`torch_entities/components/reward_providers/curiosity_reward_provider.py`):
 1. `phi` is a body of the signal's `network_settings`; both models have one hidden layer of 256 units with Swish.
 2. Both models' losses train `phi`, through `phi(s)` and `phi(s')`.
 3. A reward is at most `1 / strength`, hence at most 1 after it; before the first update it is 0.
 4. The inverse model's error is the squared distance of continuous actions plus the cross-entropy of each branch.
 5. Returns go on beyond termination.

Deviations, on purpose:
 a. With `normalize` the statistics of observations merge with each update; ML-Agents never updates them.
 b. Actions are those that the environment got, in [-1, 1]; ML-Agents predicts the policy's unclipped sample.
 c. No `1e-10` inside logarithms.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Float
from torch import Tensor, nn

from ludus.config.rewards import CuriosityConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.transitions import Transitions
from worker.learning.functional.prediction import action_error, flat_actions, squared_distance
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.dense import kaiming_dense, xavier_dense
from worker.learning.rewards.signal import TrainedSignal, observed, pieces, without_memory

LOSS_FACTOR = 10.0
FORWARD_SHARE = 0.2
"""Weight of the forward model's loss; the inverse model has the rest."""
HIDDEN_UNITS = 256


class Foreseen(nn.Module):
    """Two layers: 256 units with Swish, then the prediction."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = kaiming_dense(inputs, HIDDEN_UNITS, 1.0, generator)
        self.output = xavier_dense(HIDDEN_UNITS, outputs, generator)

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B P"]:
        """Return the prediction."""
        prediction: Tensor = self.output(F.silu(self.hidden(inputs)))
        return prediction


class CuriosityNetworks(nn.Module):
    """Features and both models."""

    updated: Tensor
    """1 from the first update on."""

    def __init__(self, config: CuriosityConfig, spec: BehaviorSpec, generator: torch.Generator) -> None:
        super().__init__()
        actions = spec.actions
        self.sizes = actions.discrete_branches
        width = actions.continuous_size + sum(actions.discrete_branches)
        self.features = NetworkBody(spec.observations, without_memory(config.network_settings), generator)
        self.inverse = Foreseen(2 * self.features.features, width, generator)
        self.forward_model = Foreseen(self.features.features + width, self.features.features, generator)
        self.register_buffer("updated", torch.zeros(()))

    def forward(self, transitions: Transitions) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Return the errors of the forward model (the reward) and of the inverse model."""
        now = self.features(self.features.encode(observed(transitions, transitions.index)))[0]
        following = self.features(self.features.encode(observed(transitions, transitions.next_index)))[0]
        continuous, discrete = transitions.continuous, transitions.discrete
        foreseen = self.forward_model(torch.cat([now, flat_actions(continuous, discrete, self.sizes)], 1))
        acted = self.inverse(torch.cat([now, following], 1))
        return 0.5 * squared_distance(foreseen, following), action_error(acted, continuous, discrete, self.sizes)


class CuriosityReward(TrainedSignal[CuriosityNetworks]):
    """Pays for observations that its forward model did not foresee."""

    ignores_termination = True

    def __init__(
        self, config: CuriosityConfig, spec: BehaviorSpec, device: torch.device, generator: torch.Generator
    ) -> None:
        self._limit = 1.0 / abs(config.strength) if config.strength else math.inf
        super().__init__(CuriosityNetworks(config, spec, generator).to(device), config.learning_rate)

    @torch.no_grad()
    def evaluate(self, transitions: Transitions) -> Float[Tensor, " N"]:
        """Return the forward model's error at each step, at most `1 / strength`; 0 before the first update."""
        parts = pieces(transitions, self.network.features.rows_at_once)
        errors = torch.cat([self.network(part)[0] for part in parts])
        return errors.clamp(max=self._limit) * self.network.updated

    def update(self, transitions: Transitions) -> dict[str, Float[Tensor, ""]]:
        """Train the features and both models by one step."""
        self.network.features.update_normalizer(observed(transitions, transitions.index))
        with torch.enable_grad():
            forward, inverse = (error.mean() for error in self.network(transitions))
            loss = LOSS_FACTOR * (FORWARD_SHARE * forward + (1.0 - FORWARD_SHARE) * inverse)
            self.descend(loss)
        self.network.updated.fill_(1.0)
        return {"Losses/Curiosity Forward Loss": forward.detach(), "Losses/Curiosity Inverse Loss": inverse.detach()}
