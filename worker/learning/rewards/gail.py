"""Generative adversarial imitation learning (GAIL, Ho & Ermon 2016, https://arxiv.org/abs/1606.03476).

A discriminator `D` learns to tell the expert's steps from the policy's, and the policy is paid for passing as one:

    reward = -ln(1 - D)         loss = -mean(ln D(expert)) - mean(ln(1 - D(policy))) + 10 * gradient penalty

As in ML-Agents 1.1.0 (`torch_entities/components/reward_providers/gail_reward_provider.py`):
 1. `D` is a body of the signal's `network_settings` and one sigmoid unit. With `use_actions` the body's last layers
    also see the action (choices as one-hot columns) and whether the episode was over with it.
 2. Each update meets as many demonstrated steps, drawn uniformly, as it is given steps of the policy.
 3. The statistics of observations (`normalize`) are the expert's.
 4. The gradient penalty (Gulrajani et al. 2017) holds the slope of `D` near 1 between expert and policy: each number
    of each input is mixed with its own random weight.
 5. `use_vail` (Peng et al. 2019, https://arxiv.org/abs/1810.00821) puts a bottleneck of 128 Gaussian columns before the
    unit: noise in training, means for rewards. Its price `beta` starts at 0 and follows the information that passes:
    the loss gets `beta * (information - 0.5)`, then `beta` becomes `max(0, beta + 5e-4 * (information - 0.5))`.

Deviations, on purpose:
 a. The gradient penalty is on all inputs together: every observation, the action and the flag. ML-Agents penalises the
    first observation only.
 b. Both sides' actions are compared as the environment gets them, in [-1, 1]. ML-Agents compares the demonstrated ones
    with the policy's unclipped samples, three times as large: the scale alone gives the policy away.
 c. The flag says that the *task* ended. ML-Agents also sets it where a time limit cut the episode, which neither the
    expert nor the policy can do anything about.
 d. Losses and rewards are computed from logits, without `1e-7` inside logarithms (see `functional.adversarial`).
 e. Interpolated and penalised is what the network sees: normalised vectors, pixels in [0, 1].
 f. `ignore_done` (Ludus' own key) lets this signal's returns go on where an episode terminated, as those of curiosity
    and RND do. The default, false, is ML-Agents' (its `ignore_done` of GAIL). The reward is never negative, so that
    with false a termination costs everything that would have come: the policy is paid to survive, like the expert or
    not, and to put off a success that ends the episode (survivor bias). With true a termination is worth the mean
    value of the beginnings of episodes (see `algorithms.ppo` k and `algorithms.sac` l): that is, the next episode.
    For a constant reward of 0.7 and gamma 0.99: with false the last step before a termination is worth 0.7, the step a
    hundred before it 44.6; with true both are worth 70.
"""

import hashlib
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.config.rewards import GAILConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.state import State
from worker.experience.transitions import Transitions
from worker.learning.data_parallel import average
from worker.learning.functional.adversarial import (
    bottleneck_information,
    discriminator_loss,
    gradient_penalty,
    imitation_reward,
    next_beta,
)
from worker.learning.functional.prediction import flat_actions
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.dense import kaiming_dense, xavier_dense
from worker.learning.networks.visual import scaled
from worker.learning.rewards.signal import TrainedSignal, observed, pieces, without_memory

PENALTY = 10.0
"""Weight of the gradient penalty."""
BOTTLENECK = 128
"""Columns of VAIL's bottleneck."""
BOUND = 0.5
"""Nats that may pass the bottleneck, expert and policy together."""
BETA_RATE = 5e-4


@runtime_checkable
class ExpertBatch(Protocol):
    """Demonstrated steps."""

    def sample(self, size: int, generator: torch.Generator, /) -> Transitions:
        """Draw some of them, uniformly and with replacement."""


class Judged(NamedTuple):
    """The discriminator's outputs for some rows."""

    logit: Float[Tensor, " B"]
    mean: Float[Tensor, "B Z"]
    """The bottleneck's means; no columns without VAIL."""


class Discriminator(nn.Module):
    """Body, bottleneck (VAIL), one logit."""

    beta: Tensor
    """Price of the bottleneck's information."""

    def __init__(self, config: GAILConfig, spec: BehaviorSpec, generator: torch.Generator) -> None:
        super().__init__()
        self._sizes = spec.actions.discrete_branches
        self._use_actions = config.use_actions
        width = spec.actions.continuous_size + sum(self._sizes) + 1 if config.use_actions else 0
        settings = without_memory(config.network_settings)
        self.body = NetworkBody(spec.observations, settings, generator, extra_inputs=width)
        self.bottleneck = kaiming_dense(self.body.features, BOTTLENECK, 0.1, generator) if config.use_vail else None
        self.sigma = nn.Parameter(torch.ones(BOTTLENECK if config.use_vail else 0))
        self.unit = xavier_dense(BOTTLENECK if config.use_vail else self.body.features, 1, generator)
        with torch.no_grad():
            self.unit.weight *= 0.2
        self.register_buffer("beta", torch.zeros(()))

    @torch.no_grad()
    def inputs(self, transitions: Transitions) -> list[Tensor]:
        """Return the discriminator's inputs: encoded observations as floats, then action and flag if they count."""
        encoded = self.body.encode(observed(transitions, transitions.index))
        inputs = [scaled(part) for part in encoded]
        if self._use_actions:
            actions = flat_actions(transitions.continuous, transitions.discrete, self._sizes)
            inputs.append(torch.cat([actions, transitions.terminated.float().unsqueeze(1)], 1))
        return inputs

    def forward(self, inputs: list[Tensor], noise: Float[Tensor, "B Z"] | None = None) -> Judged:
        """Judge rows; `noise` is the bottleneck's, None = its means count."""
        encoded, extra = (inputs[:-1], inputs[-1]) if self._use_actions else (inputs, None)
        features = self.body(encoded, extra=extra)[0]
        mean = features[:, :0]
        if self.bottleneck is not None:
            mean = self.bottleneck(features)
            features = mean if noise is None else mean + self.sigma * noise
        return Judged(self.unit(features).squeeze(1), mean)


class GAILReward(TrainedSignal[Discriminator]):
    """Pays for steps that pass as the expert's."""

    def __init__(
        self,
        config: GAILConfig,
        spec: BehaviorSpec,
        device: torch.device,
        generator: torch.Generator,
        expert: ExpertBatch,
        name: str = "gail",
    ) -> None:
        """`name` is the configuration's (`gail_2` if it is the second one): metrics tell several signals apart by it.

        `generator` gives the first weights and the seeds of the signal's own randomness.
        """
        self.ignores_termination = config.ignore_done
        self._label = name.replace("_", " ").replace("gail", "GAIL")
        self._expert = expert
        self._vail = config.use_vail
        super().__init__(Discriminator(config, spec, generator).to(device), config.learning_rate)
        seeds = torch.randint(2**31, (2,), generator=generator).tolist()
        self._draws = torch.Generator().manual_seed(seeds[0])  # on the CPU: the same rows on every device
        self._noise = torch.Generator(device).manual_seed(seeds[1])  # a number for every pixel: too many for a CPU

    @torch.no_grad()
    def evaluate(self, transitions: Transitions) -> Float[Tensor, " N"]:
        """Return `-ln(1 - D)` of each step."""
        network = self.network
        parts = pieces(transitions, network.body.rows_at_once)
        return torch.cat([imitation_reward(network(network.inputs(part)).logit) for part in parts])

    def update(self, transitions: Transitions) -> dict[str, Float[Tensor, ""]]:
        """Train the discriminator by one step, on as many demonstrated steps as there are steps of the policy."""
        network = self.network
        demonstrated = self._expert.sample(transitions.steps, self._draws)
        network.body.update_normalizer(observed(demonstrated, demonstrated.index))
        expert_inputs, policy_inputs = network.inputs(demonstrated), network.inputs(transitions)
        with torch.enable_grad():
            expert = network(expert_inputs, self._bottleneck_noise(transitions.steps))
            policy = network(policy_inputs, self._bottleneck_noise(transitions.steps))
            telling = discriminator_loss(expert.logit, policy.logit)
            penalty = PENALTY * self.penalty(expert_inputs, policy_inputs)
            loss = telling + penalty
            if self._vail:
                information = bottleneck_information(expert.mean, policy.mean, network.sigma)
                loss = loss + network.beta * (information - BOUND)
            self.descend(loss)
        measured = {
            f"Losses/{self._label} Loss": telling.detach(),
            f"Policy/{self._label} Policy Estimate": policy.logit.detach().sigmoid().mean(),
            f"Policy/{self._label} Expert Estimate": expert.logit.detach().sigmoid().mean(),
            f"Policy/{self._label} Grad Mag Loss": penalty.detach(),
        }
        if self._vail:
            passed = average(information.detach())  # ranks that learn as one keep one price
            network.beta.copy_(next_beta(network.beta, passed, BOUND, BETA_RATE))
            measured[f"Policy/{self._label} Beta"] = network.beta.clone()
            measured[f"Losses/{self._label} KL Loss"] = passed
        return measured

    def state_dict(self) -> State:
        """Return network, statistics, beta, optimizer and generators."""
        generators = {"draws": self._draws.get_state(), "noise": self._noise.get_state()}
        return {**super().state_dict(), "generators": generators}

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken; on another kind of device, with noise of another sequence."""
        super().load_state_dict(state)
        self._draws.set_state(state["generators"]["draws"].cpu())
        noise = state["generators"]["noise"].cpu()
        if len(noise) == len(self._noise.get_state()):
            self._noise.set_state(noise)
        else:  # of a CPU's generator on a GPU, or the other way round: a new sequence, the same whenever it is resumed
            self._noise.manual_seed(int.from_bytes(hashlib.sha256(noise.numpy().tobytes()).digest()[:4]))

    def _bottleneck_noise(self, rows: int) -> Float[Tensor, "B Z"] | None:
        if not self._vail:
            return None
        return torch.randn((rows, BOTTLENECK), generator=self._noise, device=self._noise.device)

    def penalty(self, expert: list[Tensor], policy: list[Tensor]) -> Float[Tensor, ""]:
        """Return the gradient penalty at points between expert and policy, without its weight."""
        between = []
        for shown, acted in zip(expert, policy, strict=True):
            weight = torch.rand(shown.shape, generator=self._noise, device=shown.device)
            between.append(torch.lerp(acted, shown, weight).requires_grad_())
        estimate = self.network(between, self._bottleneck_noise(len(between[0]))).logit.sigmoid().sum()
        return gradient_penalty(torch.autograd.grad(estimate, between, create_graph=True))
