"""Actor and critic as a learner sees them: predictions for whole batches.

A memory is the actor's or the critic's own, and with a shared body the actor's for both. Rows are sequences of
`length`, one after the other. Dimensions: `R` rows, `Q` sequences, `S` signals, `K` width of a memory.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from worker.learning.functional.distributions import JointDistribution
from worker.learning.networks.actor import Actor
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.dense import xavier_dense
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.privileged import PrivilegedInputs
from worker.learning.networks.value_normalizer import ValueNormalizer


class Critic(nn.Module):
    """The value network: a body of its own, or the actor's (`body` is None then), and one head for each signal."""

    def __init__(self, body: NetworkBody, signals: int, generator: torch.Generator, *, shared: bool = False) -> None:
        super().__init__()
        self.body = None if shared else body
        self.heads = xavier_dense(body.features, signals, generator)


class Prediction(NamedTuple):
    """Action distributions and values of a batch of steps."""

    joint: JointDistribution
    """Log-probability of the actions taken and entropy of the policy."""
    values: Float[Tensor, "R S"]


class ActorCritic(nn.Module):
    """An actor and a critic, separate or with one body. The critic sees what the actor does, and may see more."""

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        *,
        signals: int,
        shared_critic: bool,
        generator: torch.Generator,
        normalize_values: bool = False,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        super().__init__()
        self.actor = Actor(spec, settings, generator)
        self.privileged = PrivilegedInputs(spec, settings)
        body = self.actor.body
        if not shared_critic:
            observations = self.privileged.critic_observations
            body = NetworkBody(observations, settings, generator, normalizes=False)
        self.critic = Critic(body, signals, generator, shared=shared_critic)
        self.value_normalizer = ValueNormalizer(signals) if normalize_values else None
        """With it the critic's heads have units of their own, in `evaluate`, too."""
        self.memory_size = self.actor.memory_size
        """Width of the actor's memory, and of the critic's; 0 without."""

    def evaluate(
        self,
        encoded: Encoded,
        continuous: Float[Tensor, "R C"],
        discrete: Int[Tensor, "R D"],
        masks: Bool[Tensor, "R M"] | None,
        *,
        actor_memory: Float[Tensor, "Q K"] | None = None,
        critic_memory: Float[Tensor, "Q K"] | None = None,
        length: int = 1,
    ) -> Prediction:
        """Predict log-probability and entropy of actions, and values, for encoded observations.

        Memories are those before each sequence; None is all zeros. A shared critic goes on from the actor's.
        """
        actor, critic = self.actor, self.critic
        features, _ = actor.body(encoded, actor_memory, length=length)
        value_features = features
        if critic.body is not None:
            value_features, _ = critic.body(self.privileged.joined(encoded), critic_memory, length=length)
        joint = actor.joint(actor.head(features), continuous, discrete, masks)
        return Prediction(joint, critic.heads(value_features))

    @torch.no_grad()
    def values(
        self, encoded: Encoded, memory: Float[Tensor, "Q K"] | None = None, *, length: int = 1
    ) -> tuple[Float[Tensor, "R S"], Float[Tensor, "Q K"] | None]:
        """Return the values of each row, in the units of rewards, and the critic's memory after each sequence.

        Some rows at a time: the activations of a whole buffer would not fit a cache, nor those of pictures a GPU.
        """
        body = self.actor.body if self.critic.body is None else self.critic.body
        sequences = max(body.rows_at_once // length, 1)
        memories = None if memory is None else torch.split(memory, sequences)
        values, after = [], []
        parts = [torch.split(part, sequences * length) for part in self.privileged.joined(encoded)]
        for index, chunk in enumerate(zip(*parts, strict=True)):
            features, state = body(list(chunk), None if memories is None else memories[index], length=length)
            values.append(self.critic.heads(features))
            if state is not None:
                after.append(state)
        outputs = torch.cat(values)
        outputs = outputs if self.value_normalizer is None else self.value_normalizer(outputs)
        return outputs, torch.cat(after) if after else None
