"""Multi-agent posthumous credit assignment (MA-POCA, Cohen et al. 2021, https://arxiv.org/abs/2111.05992): PPO for
teams whose members come and go.

All agents share one policy, which sees what its agent sees. The critic sees the team (`networks.multi_agent`): its
value `V` is what all members can expect together; its baseline `B_i` for member `i` knows what the others see and do,
and of `i` itself only what it sees. So `G - B_i` is what the action of `i` was worth to the team (a counterfactual
baseline, Foerster et al. 2018). An agent that dies early still learns what its death was worth: what follows it is the
value of those who go on. Each update takes one rollout of the current policy and, for `num_epoch` passes over shuffled
minibatches, descends

    -min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A) + 0.5 * (L_V + 0.5 * L_B) - beta * entropy

where the target of both losses is the lambda-return `G_t = r_t + gamma ((1 - lambda) V_(t+1) + lambda G_(t+1))`, and
`A` is `G - B`, averaged over signals and normalised over the rollout.

Details, as in ML-Agents 1.1.0 (`poca/optimizer_torch.py`, `poca/trainer.py`) unless marked:
 1. Teams and their rewards are found in `experience.groups`: agents of one simulator with one group
    id. An agent without a group is a team of its own, for which all this is PPO with another critic.
 2. The extrinsic reward is the agent's own, that of its mates, and the group's.
 3. The value behind a segment counts, unless agent and mates all terminated.
 4. Schedules, Adam over actor and critic together, and minibatches: as in `algorithms.ppo`. After each gradient
    step the reward signals learn from the same minibatch; behavioral cloning follows once at the end.
 5. With a memory, minibatches are of whole sequences; the critic remembers twice, as the one who judges the team and as
    the one who judges what its agent had to start from.

Deviations from ML-Agents, on purpose (those of `algorithms.ppo` as to the joint ratio, the time at which statistics are
merged, logarithms, the sign of the policy loss, small rollouts, V-trace, the value behind a termination, and updates
that are taken back hold here, too):
 a. The value behind an agent that died is that of its mates at that moment, as in the paper. ML-Agents adds the dead
    agent's last observation to the team, in which the critic has never seen one: it only learns from the living.
 b. Rewards of mates that decide at other times count once, when they come, within the step that they fall into.
    ML-Agents adds a slow mate's last reward to every step of a fast one, and takes one of several of a fast one.
 c. `clip_value_loss` (Ludus' own key, off by default) clips values *and* baselines. ML-Agents never clips values, by
    a mistake (#6281), and always baselines, which then move by epsilon an update however far away the returns are.
 d. Each agent's critic memory is its own (see `algorithms.recurrent_critic`).
 e. The size of the largest team is counted before an update, not between the rows of one.

What it does not do: collect, count steps, write files, decide when to stop. Dimensions as in
`worker.learning.functional` and `experience.groups`; `P = N + B` rows of the pool, `W` columns of flat actions, `Q`
sequences, `K` width of a memory, `R` rows of a minibatch with padding and `X` without.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ludus.protocol.spec import BehaviorSpec
from worker.experience.groups import Mates, Teams, teams_of
from worker.experience.rollout import Rollout
from worker.experience.transitions import Sequences, sequences_of, transitions_of
from worker.learning.algorithms.batch import Estimates, batch_with_targets, count_minibatches
from worker.learning.algorithms.on_policy import VALUE_COEFFICIENT, Experience, Loss, OnPolicy, Rates
from worker.learning.algorithms.ppo_stats import entropies
from worker.learning.algorithms.recurrent_critic import unroll
from worker.learning.algorithms.training_state import Changed
from worker.learning.data_parallel import least
from worker.learning.functional.losses import clipped_surrogate, clipped_value_loss, squared_error
from worker.learning.functional.prediction import flat_actions
from worker.learning.networks.actor import Actor
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.multi_agent import Members, TeamCritic, TeamEmbedding
from worker.learning.rewards.signals import title

BASELINE_COEFFICIENT = 0.5
"""Of the baseline's loss within the value's."""


@dataclass(frozen=True)
class TeamExperience(Experience):
    """A rollout with its targets, frozen for all epochs."""

    signals: tuple[str, ...]
    pool: Encoded
    """Observations of all steps, then of what followed the segments: (P, ...) each."""
    actions: Float[Tensor, "P W"]
    """Flat actions; zeros for successors."""
    mates: Int[Tensor, "N G"]
    """Rows of the pool, on the CPU."""
    present: Bool[Tensor, "N G"]
    """Whether there is a mate; on the CPU."""
    baselines: Float[Tensor, "N S"]
    memories: Float[Tensor, "N K"] | None
    """The actor's, before each step."""
    critic_memories: Float[Tensor, "Q W2"] | None
    """Before each sequence, for the value and for the baseline."""
    sequences: Sequences | None
    """None without a memory."""

    def columns(self) -> list[tuple[str, Tensor]]:
        """Return every column that has to be finite."""
        columns = [item for item in super().columns() if item[0] != "observations"]
        after_values = [name for name, _ in columns].index("values") + 1
        columns.insert(after_values, ("baselines", self.baselines))
        return [*(("observations", part) for part in self.pool), *columns]

    def estimates(self) -> dict[str, Tensor]:
        """Return the baselines of each signal."""
        names = [f"Policy/{title(name)} Baseline Estimate" for name in self.signals]
        return dict(zip(names, self.baselines.unbind(1), strict=True))


class Minibatch(NamedTuple):
    """Some steps, as the networks see them and as the losses do."""

    rows: Int[Tensor, " R"]
    """Of the rollout: sequences of `length`, one after the other, padded."""
    unpadded: Int[Tensor, " X"] | None
    """Which of `rows` are experience and no padding; None where all are."""
    steps: Int[Tensor, " X"]
    """Of the rollout: those rows."""
    which: Int[Tensor, " Q"] | None
    """The sequences; None without a memory."""
    members: Int[Tensor, " U"]
    """All agents that occur in it, each once: rows of the pool."""
    places: Int[Tensor, "R G1"]
    """Where among them each row's agent is, then its mates."""
    present: Bool[Tensor, "R G"]
    """Whether there is a mate."""
    length: int

    @property
    def real(self) -> None:
        """No mask: `loss` leaves padding out."""

    def without_padding(self, of_rows: Float[Tensor, "R ..."]) -> Float[Tensor, "X ..."]:
        """Return the part of something that all rows have which is of real steps."""
        return of_rows if self.unpadded is None else of_rows.index_select(0, self.unpadded)


class POCA(OnPolicy[TeamExperience, Minibatch]):
    """Actor, team critic and optimizer of one behavior."""

    sums_extrinsic = True  # it is the team's
    model: nn.ModuleDict

    def build_model(self, spec: BehaviorSpec) -> nn.ModuleDict:
        """Return actor and critic, new."""
        settings = self.config.network_settings
        self.actor = Actor(spec, settings, self.generator)
        self.critic = TeamCritic(spec, settings, len(self.signals), self.generator)
        self.privileged = self.critic.privileged
        self.critic_memory_size = 2 * self.critic.memory_size  # of the value, and of the baseline
        return nn.ModuleDict({"actor": self.actor, "critic": self.critic})

    def changed(self) -> list[Changed]:
        """Return the largest team, which is counted before an update."""
        return [self.critic.largest]

    def loss(self, experience: TeamExperience, minibatch: Minibatch, rates: Rates) -> Loss:
        """Return the clipped surrogate, both losses of the critic and the entropy bonus, as one scalar."""
        actor, batch, steps = self.actor, experience.batch, minibatch.steps
        memory = None
        if experience.memories is not None:
            memory = experience.memories[minibatch.rows[:: minibatch.length]]
        head, _ = actor([part[minibatch.rows] for part in experience.pool], memory, length=minibatch.length)
        masks = None if batch.masks is None else batch.masks[steps]
        joint = actor.joint(minibatch.without_padding(head), batch.continuous[steps], batch.discrete[steps], masks)
        values, baselines = self.values_and_baselines(experience, minibatch)
        log_ratio = joint.log_prob - batch.log_prob[steps]
        policy_loss = clipped_surrogate(log_ratio, batch.advantage[steps], rates.epsilon)
        value_loss = self._error(values, batch.values[steps], batch.returns[steps], rates)
        baseline_loss = self._error(baselines, experience.baselines[steps], batch.returns[steps], rates)
        critic_loss = VALUE_COEFFICIENT * (value_loss + BASELINE_COEFFICIENT * baseline_loss)
        objective = policy_loss + critic_loss - rates.beta * joint.entropy.mean()
        terms = {"policy loss": policy_loss, **entropies(joint, actor.log_sigma, None)}
        return Loss(objective, {**terms, "value loss": value_loss, "Losses/Baseline Loss": baseline_loss}, log_ratio)

    def _error(self, new: Tensor, old: Tensor, returns: Tensor, rates: Rates) -> Float[Tensor, ""]:
        """Return the loss of values or of baselines."""
        if self.config.hyperparameters.clip_value_loss:
            return clipped_value_loss(new, old, returns, rates.epsilon)
        return squared_error(new, returns)

    # Targets ----------------------------------------------------------------------------------------------------

    def prepare(self, rollout: Rollout) -> TeamExperience:
        """Return the rollout with its targets: teams, values, rewards and advantages by the weights of before."""
        device, teams = self.device, teams_of(rollout)
        transitions = transitions_of(rollout, device, self.actor.layout.kind)._replace(rewards=teams.rewards.to(device))
        pool = self.encode(transitions.observations)
        taken = flat_actions(transitions.continuous, transitions.discrete, self.actor.layout.discrete_branches)
        actions = torch.cat([taken, taken.new_zeros(rollout.segments, taken.shape[1])])
        self.critic.largest.clamp_(min=-least(-_largest(teams)))  # that of all ranks
        sequences = sequences_of(rollout.lengths, self._length) if self._length else None
        estimates, critic_memories = self.estimate(rollout, teams, pool, actions, sequences)
        lambd = self.config.hyperparameters.lambd
        correction = self.correction(rollout, pool, transitions)
        batch, episodes = batch_with_targets(
            rollout, transitions, pool, estimates, ~teams.bootstraps, self.signals, lambd, correction
        )
        baselines = estimates.baselines
        assert baselines is not None, "this critic makes them"
        return TeamExperience(
            batch=batch,
            transitions=transitions,
            episodes=episodes,
            fresh=correction.fresh,
            signals=self.signals.names,
            pool=pool,
            actions=actions,
            mates=teams.steps.rows,
            present=teams.steps.present,
            baselines=baselines,
            memories=None if rollout.memories is None else rollout.memories.to(device),
            critic_memories=critic_memories,
            sequences=sequences,
        )

    def estimate(
        self, rollout: Rollout, teams: Teams, pool: Encoded, actions: Tensor, sequences: Sequences | None
    ) -> tuple[Estimates, Float[Tensor, "Q W2"] | None]:
        """Return the critic's outputs for every step and behind every segment; keep its memories.

        The second part is its memories before each sequence: for the value, then for the baseline.
        """
        device, critic = self.device, self.critic
        rows_at_once = critic.rows_at_once  # the encoders of the whole pool would not fit a GPU
        chunks = zip(*(torch.split(part, rows_at_once) for part in (actions, *pool)), strict=True)
        embedded = [critic.embed(list(observations), taken) for taken, *observations in chunks]
        members = Members(*(torch.cat(parts) for parts in zip(*embedded, strict=True)))
        steps = torch.arange(rollout.steps, device=device)
        parts = _pieces(steps, *_on(teams.steps, device))
        embeddings = [critic.embed_teams(members, *part) for part in parts]
        # Of each embedding the first half is for the values, the second for the baselines.
        summary = torch.stack([torch.cat([part.summary.chunk(2)[half] for part in embeddings]) for half in (0, 1)], 1)
        size = torch.cat([part.size.chunk(2)[0] for part in embeddings])  # (N, 1)
        mates, present = _on(teams.ends, device)
        ends = torch.arange(rollout.steps, rollout.steps + rollout.segments, device=device)
        final_teams = torch.cat([ends.unsqueeze(1), mates], 1)
        absent = torch.cat([~teams.self_at_end.to(device).unsqueeze(1), ~present], 1)
        finals = [critic.embed_team(members.seeing[team], missing) for team, missing in _pieces(final_teams, absent)]
        following = TeamEmbedding(*(torch.cat(column) for column in zip(*finals, strict=True)))
        if sequences is None:
            values, baselines = (critic.values_of(summary[:, half], size) for half in (0, 1))
            return Estimates(values, critic.values_of(following.summary, following.size), baselines), None

        def forward(rows: Tensor, memory: Tensor, length: int) -> tuple[Tensor, Tensor]:
            both = torch.cat([summary[rows, 0], summary[rows, 1]])
            features, after = critic.recur(both, torch.cat(memory.chunk(2, 1)), length)
            assert after is not None
            return torch.cat(features.chunk(2), 1), torch.cat(after.chunk(2), 1)

        unrolled = unroll(rollout, sequences, self.memories.before(rollout), forward)
        self.memories.keep(rollout, unrolled.after)
        values, baselines = (critic.values_of(part, size) for part in unrolled.features.chunk(2, 1))
        features, _ = critic.recur(following.summary, unrolled.after.chunk(2, 1)[0], 1)
        return Estimates(values, critic.values_of(features, following.size), baselines), unrolled.before

    # Steps ------------------------------------------------------------------------------------------------------

    def minibatches(self, experience: TeamExperience) -> Iterator[Minibatch]:
        """Yield full minibatches of shuffled steps or sequences; a remainder that fills none is left out of that pass.

        A rollout that is smaller than one is one minibatch. The order is drawn on the CPU: it is the same on every
        device.
        """
        hyper, sequences = self.config.hyperparameters, experience.sequences
        length = 1 if sequences is None else sequences.rows.shape[1]
        drawn = torch.arange(len(experience.mates) if sequences is None else len(sequences.rows))
        if experience.fresh is not None:
            drawn = drawn[experience.fresh if sequences is None else experience.fresh[sequences.first]]
        size = max(hyper.batch_size // length, 1)
        for _ in range(hyper.num_epoch):
            order = drawn[torch.randperm(len(drawn), generator=self.generator)]
            for part in torch.split(order, size)[: count_minibatches(len(order), size)]:
                yield minibatch_of(experience, part)

    def values_and_baselines(
        self, experience: TeamExperience, minibatch: Minibatch
    ) -> tuple[Float[Tensor, "X S"], Float[Tensor, "X S"]]:
        """Return values and baselines of the real steps. Each row of the pool goes through the encoders once."""
        members = self.critic.embed(
            [part[minibatch.members] for part in experience.pool], experience.actions[minibatch.members]
        )
        memory = None
        if minibatch.which is not None and experience.critic_memories is not None:
            memory = torch.cat(experience.critic_memories[minibatch.which].chunk(2, 1))
        agents, mates = minibatch.places[:, 0], minibatch.places[:, 1:]
        values, baselines = self.critic(members, agents, mates, minibatch.present, memory, length=minibatch.length)
        return minibatch.without_padding(values), minibatch.without_padding(baselines)


def minibatch_of(experience: TeamExperience, part: Int[Tensor, " Q"]) -> Minibatch:
    """Return some steps, or some sequences. Who is in it is found on the CPU: no device is waited for."""
    device, sequences = experience.actions.device, experience.sequences
    rows, real, which, length = part, None, None, 1
    if sequences is not None:
        chosen = sequences.select(part)
        rows, real, which = chosen.rows.reshape(-1), chosen.mask.reshape(-1).nonzero().squeeze(1), part
        length = sequences.rows.shape[1]
    agents, present = rows.unsqueeze(1), experience.present[rows]
    team = torch.cat([agents, torch.where(present, experience.mates[rows], agents)], 1)  # absent: nobody new
    members, places = torch.unique(team, return_inverse=True)
    return Minibatch(
        rows=rows.to(device),
        unpadded=None if real is None else real.to(device),
        steps=(rows if real is None else rows[real]).to(device),
        which=None if which is None else which.to(device),
        members=members.to(device),
        places=places.to(device),
        present=present.to(device),
        length=length,
    )


def _pieces(*columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield rows of some columns, 1,024 at a time: the teams of a whole rollout would not fit a cache."""
    return zip(*(torch.split(column, 1024) for column in columns), strict=True)


def _on(mates: Mates, device: torch.device) -> tuple[Int[Tensor, "R G"], Bool[Tensor, "R G"]]:
    return mates.rows.to(device), mates.present.to(device)


def _largest(teams: Teams) -> int:
    """Return the members of the largest team of a rollout."""
    ends = teams.ends.present.sum(1) + teams.self_at_end
    return max(int(teams.steps.present.sum(1).max()) + 1, int(ends.max()))
