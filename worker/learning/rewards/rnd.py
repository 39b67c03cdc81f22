"""Random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894): reward for new observations.

A network with random weights that never change, the target, gives each observation some features; another one learns
to predict them. Where it is still wrong it has not been often:

    reward = sum over features of (predictor(s) - target(s))^2            loss = mean of the same

As in ML-Agents 1.1.0 (`torch_entities/components/reward_providers/rnd_reward_provider.py`): both are bodies of the
signal's `network_settings`, the reward is that of the step's own observation, and returns go on beyond termination.

Deviation, on purpose: with `normalize` the statistics of observations (one set for both networks) merge with each
update, and evaluating changes nothing. ML-Agents merges whenever either network is used, so that rewards depend on how
often they were asked for.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.config.rewards import RNDConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.transitions import Transitions
from worker.learning.functional.prediction import squared_distance
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.encoder import Encoded
from worker.learning.rewards.signal import TrainedSignal, observed, pieces, without_memory


class RNDNetworks(nn.Module):
    """The target, which keeps its random weights and the statistics, and its predictor."""

    def __init__(self, config: RNDConfig, spec: BehaviorSpec, generator: torch.Generator) -> None:
        super().__init__()
        settings = without_memory(config.network_settings)
        self.target = NetworkBody(spec.observations, settings, generator).requires_grad_(False)
        self.predictor = NetworkBody(spec.observations, settings, generator, normalizes=False)

    def forward(self, encoded: Encoded) -> Float[Tensor, " B"]:
        """Return how wrong the prediction is."""
        return squared_distance(self.predictor(encoded)[0], self.target(encoded)[0])


class RNDReward(TrainedSignal[RNDNetworks]):
    """Pays for observations that its predictor does not know yet."""

    ignores_termination = True

    def __init__(self, config: RNDConfig, spec: BehaviorSpec, device: torch.device, generator: torch.Generator) -> None:
        super().__init__(RNDNetworks(config, spec, generator).to(device), config.learning_rate)

    @torch.no_grad()
    def evaluate(self, transitions: Transitions) -> Float[Tensor, " N"]:
        """Return the error of the prediction for each step's observation."""
        target = self.network.target
        parts = pieces(transitions, target.rows_at_once)
        return torch.cat([self.network(target.encode(observed(part, part.index))) for part in parts])

    def update(self, transitions: Transitions) -> dict[str, Float[Tensor, ""]]:
        """Train the predictor by one step."""
        observations = observed(transitions, transitions.index)
        self.network.target.update_normalizer(observations)
        with torch.enable_grad():
            loss = self.network(self.network.target.encode(observations)).mean()
            self.descend(loss)
        return {"Losses/RND Loss": loss.detach()}
