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
 1. Who belongs together, and what they earn, is found in `experience.groups`: agents of one simulator with one group
    id. An agent without a group is a team of its own, for which all this is PPO with another critic.
 2. The extrinsic reward is the agent's own, that of its mates, and the group's.
 3. What follows a segment counts, unless agent and mates all terminated.
 4. Schedules, Adam over actor and critic together, and what a minibatch is: as in `algorithms.ppo`. After each gradient
    step the reward signals learn from the same minibatch; behavioral cloning follows once at the end.
 5. With a memory, minibatches are of whole sequences; the critic remembers twice, as the one who judges the team and as
    the one who judges what its agent had to start from.

Deviations from ML-Agents, on purpose (those of `algorithms.ppo` as to the joint ratio, the time at which statistics are
merged, logarithms, the sign of the policy loss, small rollouts, what stands behind a termination, and updates that are
taken back hold here, too):
 a. What follows an agent that died is the value of its mates at that moment, as in the paper. ML-Agents adds the dead
    agent's last observation to the team, in which the critic has never seen one: it only learns from the living.
 b. Rewards of mates that decide at other times count once, when they come, within the step that they fall into.
    ML-Agents adds a slow mate's last reward to every step of a fast one, and takes one of several of a fast one.
 c. `clip_value_loss` (Ludus' own key, off by default) clips values *and* baselines. ML-Agents never clips values, by
    a mistake (#6281), and always baselines, which then move by epsilon an update however far away the returns are.
 d. Each agent's critic memory is its own (see `algorithms.recollection`).
 e. The size of the largest team is counted before an update, not between the rows of one.

What it does not do: collect, count steps, write files, decide when to stop. Dimensions as in
`worker.learning.functional` and `experience.groups`; `P = N + B` rows of the pool, `W` columns of flat actions, `Q`
sequences, `K` width of a memory, `R` rows of a minibatch with padding and `X` without.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from ludus.protocol.spec import BehaviorSpec
from server.config.config import POCAConfig
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.groups import Mates, Teams, teams_of
from worker.experience.rollout import Rollout
from worker.experience.sequences import Sequences, sequences_of
from worker.experience.transitions import Transitions, transitions_of
from worker.learning.algorithms.batch import Batch
from worker.learning.algorithms.bc import cloning_of
from worker.learning.algorithms.guards import Diverged, first_infinite
from worker.learning.algorithms.learnt import Learnt
from worker.learning.algorithms.ppo_stats import PolicyTrace, PPOStats, entropies
from worker.learning.algorithms.recollection import Memories, recollect
from worker.learning.functional.distributions import joint_distribution, joint_gradient
from worker.learning.functional.losses import Term, clipped_surrogate, clipped_value_loss, squared_error
from worker.learning.functional.prediction import flat_actions
from worker.learning.functional.returns import beyond_termination, generalized_advantages, normalized
from worker.learning.functional.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule
from worker.learning.networks.actor import Actor
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.multi_agent import Digest, Members, TeamCritic
from worker.learning.networks.optimizer import FlatAdam
from worker.learning.rewards.episodes import EpisodeReturns, segment_sums
from worker.learning.rewards.signals import SignalSet, extrinsic_alone, title
from worker.learning.shares import share

VALUE_COEFFICIENT = 0.5
BASELINE_COEFFICIENT = 0.5
"""Of the baseline's loss within the value's."""


class Rates(NamedTuple):
    """The scheduled numbers of one update."""

    learning_rate: float
    epsilon: float
    beta: float


class Estimates(NamedTuple):
    """What the critic says of a rollout before the update."""

    values: Float[Tensor, "N S"]
    baselines: Float[Tensor, "N S"]
    bootstrap: Float[Tensor, "B S"]
    """The value of what follows each segment."""
    memories: Float[Tensor, "Q W2"] | None
    """The critic's memories before each sequence: for the value, then for the baseline."""


class Experience(NamedTuple):
    """A rollout with its targets, frozen for all epochs."""

    batch: Batch
    """The steps as PPO would have them."""
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
    transitions: Transitions
    """What reward signals see."""
    earned: Float[Tensor, "B S"]
    """Each segment's sum of rewards, after strength."""


class Minibatch(NamedTuple):
    """Some steps, as the networks see them and as the losses do."""

    rows: Int[Tensor, " R"]
    """Of the rollout: sequences of `length`, one after the other, padded."""
    real: Int[Tensor, " X"] | None
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

    def without_padding(self, of_rows: Float[Tensor, "R ..."]) -> Float[Tensor, "X ..."]:
        """Return the part of something that all rows have which is of real steps."""
        return of_rows if self.real is None else of_rows.index_select(0, self.real)


class POCA:
    """Actor, team critic and optimizer of one behavior."""

    version: int
    """How many updates the weights have seen: the version under which they are published."""

    def __init__(
        self,
        config: POCAConfig,
        spec: BehaviorSpec,
        device: torch.device,
        seed: int,
        signals: SignalSet | None = None,
        shown: DemonstrationBuffer | None = None,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior.

        `signals` may be left out where the game's rewards are the only ones; `shown` is what `behavioral_cloning`
        imitates.
        """
        settings = config.network_settings
        self.config, self.device, self.version = config, device, 0
        self._generator = torch.Generator().manual_seed(seed)
        self._signals = extrinsic_alone(config.reward_signals, device) if signals is None else signals
        self._actor = Actor(spec, settings, self._generator)
        self._critic = TeamCritic(spec, settings, len(self._signals), self._generator)
        self._model = nn.ModuleDict({"actor": self._actor, "critic": self._critic}).to(device)
        self._optimizer = FlatAdam(
            [(name, parameter) for name, parameter in self._model.named_parameters() if parameter.numel()]
        )
        self._memories = Memories(2 * self._critic.memory_size, device)
        self._episodes = EpisodeReturns(len(self._signals))
        self._length = 0 if settings.memory is None else settings.memory.sequence_length
        self._cloning = cloning_of(config, self.actor, shown, max(self._length, 1), seed)
        self._learnt = Learnt(
            self._model,
            self._generator,
            self._optimizer,
            self._signals,
            self._memories,
            self._episodes,
            self._cloning,
        )
        self.reconfigure(config)

    def reconfigure(self, config: POCAConfig) -> None:
        """Go on with another configuration from the next update on; see `Algorithm`."""
        self.config, hyper = config, config.hyperparameters
        self._learning_rate = Schedule(
            hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_FLOOR, config.max_steps
        )
        self._epsilon = Schedule(hyper.epsilon_schedule, hyper.epsilon, EPSILON_FLOOR, config.max_steps)
        self._beta = Schedule(hyper.beta_schedule, hyper.beta, BETA_FLOOR, config.max_steps)
        if self._cloning is not None:
            self._cloning.set_learning_rate(hyper.learning_rate)

    @property
    def actor(self) -> Actor:
        """The policy network, for exports."""
        return self._actor

    def round_steps(self) -> int:
        """Return how many agent steps one round of collection has."""
        return self.config.hyperparameters.buffer_size

    @torch.no_grad()
    def update(self, rollout: Rollout, step: int) -> dict[str, float]:
        """Improve the policy on one rollout; `step` is the policy's step, at which the schedules are read.

        Return what was measured, by metric name (`PPOStats`, and for baselines what it has for values). Raise
        `Diverged`, with everything as before, if any value on the way is not finite or explodes.
        """
        rates, before, trace = self.rates(step), self._learnt.save(), PolicyTrace()
        largest = self._critic.largest.clone()
        experience = self._prepare(rollout)
        judged = {
            f"Policy/{title(name)} Baseline Estimate": mean
            for name, mean in zip(self._signals.names, experience.baselines.mean(0).unbind(), strict=True)
        }
        for minibatch in self._minibatches(experience):
            terms, log_ratio = self._differentiate(experience, minibatch, rates)
            terms["gradient"] = self._optimizer.step(rates.learning_rate, self.config.hyperparameters.max_grad_norm)
            if self._signals.learns:
                terms |= self._signals.update(experience.transitions.select(minibatch.steps))
            trace.add_policy({**terms, **judged}, log_ratio, None)
        try:
            cloned = {} if self._cloning is None else self._cloning.update(step)
            finite = self._optimizer.all_finite() & self._signals.is_finite()
            measured = trace.conclude(experience.batch, self._signals.names, rates.epsilon, finite, experience.earned)
            if measured is None:
                raise self._diagnosis(experience, trace)
        except Diverged:
            self._learnt.restore(before)
            self._critic.largest.copy_(largest)
            raise
        observations = experience.transitions.observations
        self._actor.body.update_normalizer([column[: rollout.steps] for column in observations])
        self.version += 1
        earned = self._episodes.add(rollout, measured.episodes)
        rewards = zip(self._signals.names, earned.mean(0).tolist() if len(earned) else (), strict=False)
        stats = PPOStats(
            **measured.own,
            **rates._asdict(),
            critic_learning_rate=None,
            policy_lag=float(self.version - 1 - rollout.versions.double().mean()),
            others={
                **measured.others,
                **{f"Policy/{title(name)} Reward": mean for name, mean in rewards},  # the extrinsic one is the team's
                **cloned,
            },
        )
        return stats.metrics()

    def rates(self, step: int) -> Rates:
        """Return what an update at `step` uses."""
        return Rates(self._learning_rate.at(step), self._epsilon.at(step), self._beta.at(step))

    def flat_weights(self) -> NDArray[np.float32]:
        """Return the actor's weights and normalizer statistics as collectors load them."""
        return self._actor.flatten()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next update depends on. Tensors are copies."""
        return {"version": self.version, **self._learnt.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._learnt.load_state_dict(state)
        self.version = state["version"]

    # Targets ----------------------------------------------------------------------------------------------------

    def _prepare(self, rollout: Rollout) -> Experience:
        """Return the rollout with its targets: teams, values, rewards and advantages by the weights of before."""
        device, masks, teams = self.device, rollout.action_masks, teams_of(rollout)
        transitions = transitions_of(rollout, device, squashed=False)._replace(rewards=teams.rewards.to(device))
        pool = self._actor.encode(transitions.observations)
        taken = flat_actions(transitions.continuous, transitions.discrete, self._actor.layout.discrete_branches)
        actions = torch.cat([taken, taken.new_zeros(rollout.segments, taken.shape[1])])
        self._critic.largest.clamp_(min=_largest(teams))
        sequences = sequences_of(rollout.lengths, self._length) if self._length else None
        estimates = self._estimate(rollout, teams, pool, actions, sequences)
        rewards = self._signals.evaluate(transitions)
        firsts = (rollout.lengths.cumsum(0) - rollout.lengths)[rollout.starts_episode]
        beginnings, goes_on = estimates.values[firsts.to(device)], self._signals.ignores_termination
        advantages = generalized_advantages(
            rewards,
            estimates.values,
            beyond_termination(estimates.bootstrap, ~teams.bootstraps, beginnings, goes_on),
            rollout.lengths,
            ~teams.bootstraps,
            gamma=self._signals.gamma,
            lambd=self.config.hyperparameters.lambd,
            ignores_termination=self._signals.ignores_termination,
        )
        returns = advantages + estimates.values  # lambda-returns
        batch = Batch(
            encoded=[part[: rollout.steps] for part in pool],
            continuous=rollout.continuous.to(device),
            discrete=transitions.discrete,
            masks=None if masks is None or bool(masks.all()) else masks.to(device),
            log_prob=rollout.log_probs.to(device).sum(1),
            advantage=normalized((returns - estimates.baselines).mean(1)),
            values=estimates.values,
            returns=returns,
            steps=transitions.index,
        )
        return Experience(
            batch=batch,
            pool=pool,
            actions=actions,
            mates=teams.steps.rows,
            present=teams.steps.present,
            baselines=estimates.baselines,
            memories=None if rollout.memories is None else rollout.memories.to(device),
            critic_memories=estimates.memories,
            sequences=sequences,
            transitions=transitions,
            earned=segment_sums(rewards, rollout),
        )

    def _estimate(
        self, rollout: Rollout, teams: Teams, pool: Encoded, actions: Tensor, sequences: Sequences | None
    ) -> Estimates:
        """Ask the critic about every step, and about what follows every segment; let it remember."""
        device, critic = self.device, self._critic
        members = self._embed(pool, actions)
        steps = torch.arange(rollout.steps, device=device)
        parts = _pieces(steps, *_on(teams.steps, device))
        digests = [critic.digest_of_agents(members, *part) for part in parts]
        # Of each digest the first half is for the values, the second for the baselines.
        summary = torch.stack([torch.cat([one.summary.chunk(2)[half] for one in digests]) for half in (0, 1)], 1)
        size = torch.cat([one.size.chunk(2)[0] for one in digests])  # (N, 1)
        mates, present = _on(teams.ends, device)
        ends = torch.arange(rollout.steps, rollout.steps + rollout.segments, device=device)
        teams_behind = torch.cat([ends.unsqueeze(1), mates], 1)
        absent = torch.cat([~teams.self_at_end.to(device).unsqueeze(1), ~present], 1)
        behind = [critic.digest(members.seeing[team], away) for team, away in _pieces(teams_behind, absent)]
        following = Digest(*(torch.cat(column) for column in zip(*behind, strict=True)))
        if sequences is None:
            values, baselines = (critic.judge(summary[:, half], size) for half in (0, 1))
            return Estimates(values, baselines, critic.judge(following.summary, following.size), None)

        def recall(rows: Tensor, memory: Tensor, length: int) -> tuple[Tensor, Tensor]:
            both = torch.cat([summary[rows, 0], summary[rows, 1]])
            features, after = critic.remember(both, torch.cat(memory.chunk(2, 1)), length)
            assert after is not None
            return torch.cat(features.chunk(2), 1), torch.cat(after.chunk(2), 1)

        lived = recollect(rollout, sequences, self._memories.before(rollout), recall)
        self._memories.keep(rollout, lived.after)
        values, baselines = (critic.judge(part, size) for part in lived.features.chunk(2, 1))
        features, _ = critic.remember(following.summary, lived.after.chunk(2, 1)[0], 1)
        return Estimates(values, baselines, critic.judge(features, following.size), lived.before)

    def _embed(self, pool: Encoded, actions: Tensor) -> Members:
        """Embed the whole pool, some rows at a time."""
        rows = self._critic.rows_at_once
        chunks = zip(torch.split(actions, rows), *(torch.split(part, rows) for part in pool), strict=True)
        embedded = [self._critic.embed(list(observations), done) for done, *observations in chunks]
        return Members(*(torch.cat(parts) for parts in zip(*embedded, strict=True)))

    # Steps ------------------------------------------------------------------------------------------------------

    def _minibatches(self, experience: Experience) -> Iterator[Minibatch]:
        """Yield full minibatches of shuffled steps or sequences; what does not fill one is left out of that pass.

        A rollout that is smaller than one is one minibatch. The order is drawn on the CPU: it is the same on every
        device.
        """
        hyper, sequences = self.config.hyperparameters, experience.sequences
        length = 1 if sequences is None else sequences.rows.shape[1]
        count = len(experience.mates) if sequences is None else len(sequences.rows)
        size = max(hyper.batch_size // length, 1)
        for _ in range(hyper.num_epoch):
            order, own = share(torch.randperm(count, generator=self._generator), size)
            for part in torch.split(order, own)[: max(len(order) // own, 1)]:
                yield self._minibatch(experience, part)

    def _minibatch(self, experience: Experience, part: Int[Tensor, " Q"]) -> Minibatch:
        """Return some steps, or some sequences. Who is in it is found on the CPU: no device is waited for."""
        device, sequences = self.device, experience.sequences
        rows, real, which, length = part, None, None, 1
        if sequences is not None:
            chosen = sequences.select(part)
            rows, real, which = chosen.rows.reshape(-1), chosen.mask.reshape(-1).nonzero().squeeze(1), part
            length = sequences.rows.shape[1]
        own, present = rows.unsqueeze(1), experience.present[rows]
        team = torch.cat([own, torch.where(present, experience.mates[rows], own)], 1)  # absent: nobody new
        members, places = torch.unique(team, return_inverse=True)
        return Minibatch(
            rows=rows.to(device),
            real=None if real is None else real.to(device),
            steps=(rows if real is None else rows[real]).to(device),
            which=None if which is None else which.to(device),
            members=members.to(device),
            places=places.to(device),
            present=present.to(device),
            length=length,
        )

    def _differentiate(
        self, experience: Experience, minibatch: Minibatch, rates: Rates
    ) -> tuple[dict[str, Float[Tensor, ""]], Float[Tensor, " X"]]:
        """Write the gradient of the objective on one minibatch to the weights' `grad`.

        Return the terms of the objective by name, and the log-ratio of each action.
        """
        batch, steps = experience.batch, minibatch.steps
        self._optimizer.zero_gradient()
        with torch.enable_grad():
            judged = self._judge(experience, minibatch)
        value = self._error(judged[0].detach(), batch.values[steps], batch.returns[steps], rates)
        baseline = self._error(judged[1].detach(), experience.baselines[steps], batch.returns[steps], rates)
        slopes = [value.slope * VALUE_COEFFICIENT, baseline.slope * (VALUE_COEFFICIENT * BASELINE_COEFFICIENT)]
        torch.autograd.backward(list(judged), slopes)
        terms, log_ratio = self._improve(experience, minibatch, rates)
        return {**terms, "value loss": value.loss, "Losses/Baseline Loss": baseline.loss}, log_ratio

    def _error(self, new: Tensor, old: Tensor, returns: Tensor, rates: Rates) -> Term:
        """Return the loss of values or of baselines."""
        if self.config.hyperparameters.clip_value_loss:
            return clipped_value_loss(new, old, returns, rates.epsilon)
        return squared_error(new, returns)

    def _judge(self, experience: Experience, minibatch: Minibatch) -> tuple[Float[Tensor, "X S"], Float[Tensor, "X S"]]:
        """Return values and baselines of the real steps. Each row of the pool goes through the encoders once."""
        members = self._critic.embed(
            [part[minibatch.members] for part in experience.pool], experience.actions[minibatch.members]
        )
        memory = None
        if minibatch.which is not None and experience.critic_memories is not None:
            memory = torch.cat(experience.critic_memories[minibatch.which].chunk(2, 1))
        own, mates = minibatch.places[:, 0], minibatch.places[:, 1:]
        values, baselines = self._critic(members, own, mates, minibatch.present, memory, length=minibatch.length)
        return minibatch.without_padding(values), minibatch.without_padding(baselines)

    def _improve(
        self, experience: Experience, minibatch: Minibatch, rates: Rates
    ) -> tuple[dict[str, Float[Tensor, ""]], Float[Tensor, " X"]]:
        """Write the gradient of the actor's part of the objective; return its terms and the log-ratios."""
        actor, batch, steps = self._actor, experience.batch, minibatch.steps
        memory = None
        if experience.memories is not None:
            memory = experience.memories[minibatch.rows[:: minibatch.length]]
        trail = actor.body.record([part[minibatch.rows] for part in experience.pool], memory, length=minibatch.length)
        features = minibatch.without_padding(trail.features)
        joint = joint_distribution(
            actor.head(features),
            actor.log_sigma,
            batch.continuous[steps],
            batch.discrete[steps],
            None if batch.masks is None else batch.masks[steps],
            actor.layout.discrete_branches,
        )
        log_ratio = joint.log_prob - batch.log_prob[steps]
        policy = clipped_surrogate(log_ratio, batch.advantage[steps], rates.epsilon)
        by_head, by_log_sigma = joint_gradient(joint, policy.slope, -rates.beta / len(steps))
        actor.head.backward(features, by_head)
        if actor.log_sigma.grad is not None:
            actor.log_sigma.grad.copy_(by_log_sigma)
        by_features = actor.head.by_inputs(by_head)
        if minibatch.real is not None:
            by_features = torch.zeros_like(trail.features).index_copy(0, minibatch.real, by_features)
        actor.body.backward(trail, by_features)
        return {"policy loss": policy.loss, **entropies(joint, actor.log_sigma, None)}, log_ratio

    # Bookkeeping ------------------------------------------------------------------------------------------------

    def _diagnosis(self, experience: Experience, trace: PolicyTrace) -> Diverged:
        """Return an error that names what was wrong first."""
        batch, spoiled = experience.batch, self._signals.spoiled()
        columns = [
            *(("observations", part) for part in experience.pool),
            ("continuous", batch.continuous),
            ("log-prob", batch.log_prob),
            ("values", batch.values),
            ("baselines", experience.baselines),
            ("returns", batch.returns),
            ("advantage", batch.advantage),
        ]
        return (
            first_infinite(columns)
            or trace.diagnosis()
            or first_infinite((f"weights of {name}", weight) for name, weight in self._model.named_parameters())
            or Diverged("optimizer" if spoiled is None else f"weights of {spoiled}", len(trace) - 1)
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
