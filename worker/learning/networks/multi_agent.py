"""The critic of MA-POCA (Cohen et al. 2021, https://arxiv.org/abs/2111.05992, section 4): one value for a whole team
of any members, and for each member a baseline that knows the actions of the others.

    observation --encoders--> encoding --+--> embedding of what an agent sees
                                         +--> [encoding, action] --> embedding of what an agent sees and does
    embeddings of the team --self-attention--> hidden layers --> [LSTM] --> [features, size] --> one value per signal

The *value* is made of what all members see. The *baseline* of a member is made of what it sees, and of what the others
see and do: it does not depend on its own action, so that subtracting it from a return leaves what this action is worth.
Both are answers of one network. `size` is the number of members, -1 for none and 1 for the largest team ever seen.

As in ML-Agents (`torch_entities/networks.py`, `MultiAgentNetworkBody`): both embeddings have `hidden_units` units with
Swish and weights from `N(0, 0.125 / hidden_units)`; attention has four heads; the hidden layers behind it start
`sqrt(0.125 / hidden_units)` times as large as usual. The encoders are the critic's own; observations come normalised
by the actor's statistics.

Dimensions: `P` rows of a pool of observations, `R` rows (steps), `G` mates of each, `T` teams, `K` members of a team,
`H` hidden units, `W` columns of flat actions, `S` signals, `Q` sequences.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ludus.collector.layout import BodyLayout
from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from worker.learning.networks.attention import HEADS, EntityEmbedding, ResidualSelfAttention, entity_deviation
from worker.learning.networks.dense import DenseBody, xavier_dense
from worker.learning.networks.encoder import Encoded, ObservationEncoder
from worker.learning.networks.memory import Memory
from worker.learning.networks.privileged import PrivilegedInputs


class Members(NamedTuple):
    """Embeddings of agents at some moments."""

    seeing: Float[Tensor, "P H"]
    """Of what they see."""
    acting: Float[Tensor, "P H"]
    """Of what they see and do."""


class TeamEmbedding(NamedTuple):
    """The critic's features of teams, before its memory."""

    summary: Float[Tensor, "T H"]
    size: Float[Tensor, "T 1"]
    """-1 for none to 1 for the largest team ever seen."""


class TeamCritic(nn.Module):
    """Values of teams and baselines of their members."""

    largest: Tensor
    """The most members that a team ever had; only counted, not trained."""
    memory: Memory | None

    def __init__(self, spec: BehaviorSpec, settings: NetworkSettings, signals: int, generator: torch.Generator) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        super().__init__()
        units, actions = settings.hidden_units, spec.actions
        self.privileged = PrivilegedInputs(spec, settings)
        layout = BodyLayout.of(self.privileged.critic_observations, settings, spec.name)
        if units % HEADS:
            message = f"network_settings.hidden_units is {units}; POCA's critic needs a multiple of its {HEADS} heads"
            raise UnsupportedSpec(spec.name, "hidden_units_not_divisible", message)
        self.memory_size, self.features = layout.memory_size, layout.features
        self.encoder = ObservationEncoder(layout, generator)
        width = self.encoder.size
        self.seeing = EntityEmbedding(width, 0, units, generator)
        self.acting = EntityEmbedding(width + actions.continuous_size + actions.mask_size, 0, units, generator)
        self.attention = ResidualSelfAttention(units, generator)
        scale = entity_deviation(units)
        layers = layout.num_layers
        self.hidden = DenseBody(units, units, layers, generator, activation=layout.activation, scale=scale)
        self.memory = Memory(units, layout.memory_size, generator) if layout.memory_size else None
        self.heads = xavier_dense(layout.features + 1, signals, generator)
        self.register_buffer("largest", torch.ones(()))

    def embed(self, encoded: Encoded, actions: Float[Tensor, "P W"]) -> Members:
        """Return the embeddings of agents; `actions` are flat (`functional.prediction.flat_actions`)."""
        encoding = self.encoder(self.privileged.joined(encoded))
        both = torch.cat([encoding, actions], 1)
        return Members(
            self.seeing(encoding.unsqueeze(1), None).squeeze(1), self.acting(both.unsqueeze(1), None).squeeze(1)
        )

    def embed_team(self, teams: Float[Tensor, "T K H"], absent: Bool[Tensor, "T K"]) -> TeamEmbedding:
        """Return what teams of embedded members amount to. Neither their order nor the absent change it."""
        count = (~absent).sum(1, keepdim=True)
        return TeamEmbedding(self.hidden(self.attention(teams, absent)), count * 2.0 / self.largest - 1.0)

    def recur(
        self, summary: Float[Tensor, "R H"], memory: Float[Tensor, "Q M"] | None, length: int
    ) -> tuple[Float[Tensor, "R U"], Float[Tensor, "Q M"] | None]:
        """Return features, and the memory after each sequence of `length` rows; both as they are without a memory."""
        if self.memory is None:
            return summary, None
        features, after = self.memory(summary, memory, length)
        return features, after

    def values_of(self, features: Float[Tensor, "R U"], size: Float[Tensor, "R 1"]) -> Float[Tensor, "R S"]:
        """Return one value for each signal."""
        values: Tensor = self.heads(torch.cat([features, size], 1))
        return values

    def forward(
        self,
        members: Members,
        own: Int[Tensor, " R"],
        mates: Int[Tensor, "R G"],
        present: Bool[Tensor, "R G"],
        memory: Float[Tensor, "Q2 M"] | None = None,
        *,
        length: int = 1,
    ) -> tuple[Float[Tensor, "R S"], Float[Tensor, "R S"]]:
        """Return values and baselines of agents in their teams: rows of the members, their mates and who is there.

        `memory` is that before each sequence of rows: first those for the values, then those for the baselines.
        """
        embedding = self.embed_teams(members, own, mates, present)
        features, _ = self.recur(embedding.summary, memory, length)
        values, baselines = self.values_of(features, embedding.size).chunk(2)
        return values, baselines

    def embed_teams(
        self,
        members: Members,
        own: Int[Tensor, " R"],
        mates: Int[Tensor, "R G"],
        present: Bool[Tensor, "R G"],
    ) -> TeamEmbedding:
        """Return the embeddings for the values of `R` agents, then those for their baselines: twice as many teams."""
        oneself = members.seeing[own].unsqueeze(1)  # (R, 1, H)
        value = torch.cat([oneself, members.seeing[mates]], 1)
        baseline = torch.cat([oneself, members.acting[mates]], 1)
        members_present = torch.cat([present.new_ones(len(own), 1), present], 1)
        return self.embed_team(torch.cat([value, baseline]), ~members_present.repeat(2, 1))

    @property
    def rows_at_once(self) -> int:
        """Agents whose encoders take about 64 MB without derivatives."""
        return min(max(2**24 // max(self.encoder.widest, 1), 1), 4096)
