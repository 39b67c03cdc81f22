"""Soft actor-critic: reward and entropy together, from a replay buffer (Haarnoja et al. 2018, with a value network,
https://arxiv.org/abs/1801.01290; adapting entropy coefficients: https://arxiv.org/abs/1812.05905).

Each gradient step draws transitions (s, a, r, s') and lets, with `y` frozen,

    Q1, Q2 descend   0.5 (Q(s, a) - y)^2        y = r + gamma V_target(s')        (r alone where the task ended)
    V descend        0.5 (V(s) - y)^2           y = soft value of the policy at s with min(Q1, Q2)
    the policy ascend                           its soft value at s with Q1
    log alpha descend                           log alpha * (entropy - target entropy)

and V_target moves the part `tau` of its way to V. The soft value is in `functional.soft_values`: what the critics
expect of the policy's action, plus `alpha` times its entropy; for columns, branches, and both.

Details, as in ML-Agents 1.1.0 (`sac/optimizer_torch.py`, `sac/trainer.py`, `off_policy_trainer.py`) unless marked:
 1. Twin Q networks, a value network and its target; heads for each reward signal with its own gamma. The policy ascends
    the mean over signals. Rewards of a batch are computed anew with the signals' networks of that moment.
 2. One entropy coefficient for all continuous columns and one for each branch, from `init_entcoef` on. Target entropies
    are -C nats for the columns together and 0.2 ln(choices) for each branch.
 3. All losses are taken at the same weights; then policy, critics and coefficients step together. ML-Agents has three
    Adams of one learning rate; one Adam over all weights does the same, since it treats each number by itself.
 4. `steps_per_update` agent steps for each gradient step, counted from `buffer_init_steps` on; below 1 there are more
    gradient steps than agent steps. Steps that came in before the buffer held a batch are made up for. The signals' own
    networks have their own rate and draw batches of their own. Behavioral cloning does one of its updates for each
    gradient step.
 5. Observations are normalised by statistics that merge every round before it is learnt from; the critics see what the
    actor has encoded.
 6. Recurrent: batches of `batch_size // sequence_length` sequences, at least one; the actor begins with the memory that
    it had when it acted, the critics with none.

Deviations from ML-Agents, on purpose:
 a. Hybrid actions: the entropy of the columns is *added* to the soft value. ML-Agents subtracts it there, by a sign.
 b. Hybrid actions: the Q values count once in the policy's loss. ML-Agents adds two losses that both have them.
 c. The policy's loss is the mean over branches as the soft value is; ML-Agents sums over branches there only. With
    discrete actions alone that is a constant factor, to which Adam is indifferent.
 d. A truncated episode bootstraps from the observation that it ended on. ML-Agents puts the last but one in its place.
 e. Padded steps of sequences do not count. In ML-Agents they do, in all squared errors.
 f. Sequences begin at any step and follow the episode; ML-Agents cuts trajectories at multiples of `sequence_length`,
    and its truncation of the buffer may cut within one. V and its target begin without memory, as the Q networks do
    there too: a stored one would be of weights long gone. The target sees the sequence from its first step on.
 g. The oldest transition leaves when a new one needs its place: the buffer holds `buffer_size`. ML-Agents drops a fifth
    of it whenever it is full.
 h. Entropy coefficients, the optimizers, counters and random generators are in checkpoints; ML-Agents starts all
    coefficients anew on resume.
 i. No `1e-7` inside logarithms (`functional.squashed`, `functional.distributions`).
 j. The coefficient of a kind of action that a behavior does not have is not reported; ML-Agents reports NaN.
 k. `n` intervals are `n` gradient steps. ML-Agents counts from 1 and is always one behind.
 l. Beyond a termination, signals that ignore it expect the mean target value of the latest `BEGINNINGS` beginnings of
    episodes (ADR 7). ML-Agents takes that of the terminal observation, which no step begins in and nothing corrects.

Guards: a round with a value that is not finite is not stored. An update that meets one, or in which value estimates, or
what signals and cloning measure of their own steps, are a million times what they were in the last good one, is taken
back as a whole: networks, target, coefficients, optimizers and signals are those from before.
Either way `Diverged` names what it was. What was stored stays stored, and the next update draws other batches.

Where several processes learn as one (`worker.learning.shares`) all store the same rounds and draw the same batches and
noise. Of each batch a process reads and differentiates its own rows or sequences, and what it notes of them is averaged
over the processes too: all judge an update alike.

What it does not do: collect, count steps, write files, decide when to stop. Dimensions as in
`worker.learning.functional`; `R` rows of a batch, `K` outputs of a Q network for each signal, `E` entropy coefficients:
the branches', then the columns'.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import math
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from ludus.protocol.spec import BehaviorSpec
from server.config.config import SACConfig
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.replay import ReplayBuffer, Replayed
from worker.experience.rollout import Rollout
from worker.experience.transitions import Transitions, transitions_of
from worker.learning.algorithms.bc import LOSS, cloning_of
from worker.learning.algorithms.guards import Diverged, first_infinite
from worker.learning.algorithms.ppo_stats import episode_rewards
from worker.learning.algorithms.sac_stats import Heads, Notes
from worker.learning.functional.distributions import Branch, branch_bounds, masked_logits
from worker.learning.functional.returns import beyond_termination
from worker.learning.functional.schedules import LEARNING_RATE_FLOOR, Schedule
from worker.learning.functional.soft_values import (
    branch_objective_gradient,
    chosen_q,
    chosen_q_gradient,
    expected_q,
    expected_q_slope,
)
from worker.learning.functional.squashed import Squashed, draw_squashed, squashed_gradient
from worker.learning.networks.actor import Actor
from worker.learning.networks.body import Trail
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.optimizer import FlatAdam
from worker.learning.networks.optimizer import Snapshot as OptimizerSnapshot
from worker.learning.networks.q_networks import ModularCritics, build_critics
from worker.learning.rewards.episodes import EpisodeReturns, segment_sums
from worker.learning.rewards.signals import SignalSet
from worker.learning.shares import average, mean_weights, own_rows

DISCRETE_TARGET = 0.2
"""Target entropy of a branch, as a part of the largest possible."""
LARGEST_ROUND = 1024
"""Most steps of a round that `steps_per_update` does not ask for."""
REMEMBERED_ROUNDS = 4
BEGINNINGS = 64
"""Most first observations of episodes that are kept."""


class Batch(NamedTuple):
    """Steps to learn from, on the device."""

    encoded: Encoded
    """`R` rows."""
    following: Encoded
    """`R` rows: what followed."""
    continuous: Float[Tensor, "R C"]
    choices: Int[Tensor, "R D"]
    """The choice of each branch, counted over all branches."""
    masks: Bool[Tensor, "R M"] | None
    memory: Float[Tensor, "Q memory"] | None
    length: int
    rewards: Float[Tensor, "R S"]
    """After each signal's strength."""
    discounts: Float[Tensor, "R S"]
    """Each signal's gamma; 0 where nothing comes after."""
    terminated: Bool[Tensor, " R"]
    weight: Float[Tensor, "R 1"]
    """Of each row in a mean; 0 for padding."""


class Proposal(NamedTuple):
    """What the policy would do."""

    trail: Trail
    squashed: Squashed | None
    """None without columns."""
    branches: list[Branch]
    entropies: Float[Tensor, "R E"]
    """Of each branch; of the columns minus the log-density of the action that was drawn."""


class Gradients(NamedTuple):
    """Views of the optimizer's gradient."""

    actor: Tensor
    critics: Tensor
    coefficients: Float[Tensor, " E"]


class Snapshot(NamedTuple):
    """Everything that an update changes but counters and generators."""

    optimizer: OptimizerSnapshot
    target: list[Tensor]
    signals: list[Any]
    cloning: list[Tensor] | None


class SAC:
    """Actor, critics, coefficients, optimizer and replay buffer of one behavior."""

    version: int
    """How many rounds have changed the weights: the version under which they are published."""

    def __init__(
        self,
        config: SACConfig,
        spec: BehaviorSpec,
        device: torch.device,
        seed: int,
        signals: SignalSet,
        shown: DemonstrationBuffer | None = None,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        hyper, network = config.hyperparameters, config.network_settings
        self.config, self.device, self.version = config, device, 0
        self._generator = torch.Generator().manual_seed(seed)
        self._actor = Actor(spec, network, self._generator, squashed=True)
        self._critics = build_critics(spec, network, len(signals), self._generator)
        self._actor.to(device)
        self._critics.to(device)
        self._columns, self._sizes = spec.actions.continuous_size, spec.actions.discrete_branches
        coefficients = len(self._sizes) + bool(self._columns)
        self._log_coefficients = nn.Parameter(torch.full((coefficients,), math.log(hyper.init_entcoef), device=device))
        targets = [DISCRETE_TARGET * math.log(size) for size in self._sizes] + [-float(self._columns)]
        self._target_entropies = torch.tensor(targets[:coefficients], device=device)  # (E,)
        shares = [[1.0 / len(self._sizes)] for _ in self._sizes] + [[1.0]]
        self._shares = torch.tensor(shares[:coefficients], device=device).squeeze(1)  # (E,) within the soft value
        self._bounds = branch_bounds(self._sizes)
        self._first_choices = torch.tensor([start for start, _ in self._bounds], dtype=torch.int64, device=device)
        actor = [(f"actor.{name}", part) for name, part in self._actor.named_parameters() if part.numel()]
        critics = [(f"critics.{name}", part) for name, part in self._critics.named_parameters() if part.requires_grad]
        self._optimizer = FlatAdam([*actor, *critics, ("log_coefficients", self._log_coefficients)])
        sizes = [sum(part.numel() for _, part in named) for named in (actor, critics)]
        self._gradients = Gradients(*torch.split(self._optimizer.gradient, [*sizes, coefficients]))
        self._signals = signals
        self._signals_learn = signals.names != ("extrinsic",)
        # Where nothing is differentiated automatically torch need not keep books for it: a fifth of an update's time.
        automatic = isinstance(self._critics, ModularCritics) or self._signals_learn or config.behavioral_cloning
        self._mode = torch.no_grad if automatic else torch.inference_mode
        self._last_discounts = signals.gamma * signals.ignores_termination  # (S,) where the task ended
        self._ignores_end = bool(signals.ignores_termination.any())
        self._beginnings = [
            torch.empty((0, *part.shape), dtype=getattr(torch, part.dtype)) for part in spec.observations
        ]
        """The newest first observations of episodes, if any signal goes on beyond their end."""
        self._length = network.memory.sequence_length if network.memory is not None else 1
        self._replay = ReplayBuffer(spec, hyper.buffer_size, memory_size=self._actor.memory_size)
        self._step, self._updates, self._signal_updates = 0, 0, 0
        self._drawn = max(hyper.batch_size // self._length, 1)
        """Sequences of a batch; steps, without a memory."""
        self._even_weight = _even_weight(self._drawn, device)
        self._heads = Heads(signals.names, len(self._sizes), bool(self._columns))
        self._recent: deque[set[tuple[int, int]]] = deque(maxlen=REMEMBERED_ROUNDS)
        self._values_before = [1.0] * len(signals)
        """Each signal's mean size of V in the last good update."""
        self._losses_before: dict[str, float] = {}
        """The mean size of what cloning and signals measured, by metric name, in the last good update that had it."""
        self._episodes = EpisodeReturns(len(signals))
        self._earned: list[NDArray[np.float64]] = []
        """By episodes that ended since the last metrics: (F, S) each."""
        self._cloning = cloning_of(config, self._actor, shown, self._length, seed)
        self.reconfigure(config)

    def reconfigure(self, config: SACConfig) -> None:
        """Go on with another configuration from the next update on; see `Algorithm`."""
        self.config, hyper = config, config.hyperparameters
        self._learning_rate = Schedule(
            hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_FLOOR, config.max_steps
        )
        if self._cloning is not None:
            self._cloning.set_learning_rate(hyper.learning_rate)

    @property
    def actor(self) -> Actor:
        """The policy network, for exports."""
        return self._actor

    def round_steps(self) -> int:
        """Return how many agent steps the next round has.

        While the buffer fills: what is missing. Then what one gradient step asks for, but at least a step of every
        agent: answering a dozen agents one by one would cost a dozen round trips, and make none of them fresher.
        """
        hyper = self.config.hyperparameters
        rates = [hyper.steps_per_update, *([hyper.reward_signal_steps_per_update] if self._signals_learn else [])]
        asked = math.ceil(min(rates))
        missing = max(hyper.batch_size - len(self._replay), hyper.buffer_init_steps - self._step)
        agents = len(set().union(*self._recent))
        return max(asked, min(max(missing, agents), LARGEST_ROUND))

    def update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        """Store a round and take the gradient steps that are due; None if there were none.

        `step` is the policy's step, at which the schedule is read. Raise `Diverged` as the module says.
        """
        with self._mode():
            return self._update(rollout, step)

    def _update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        self._store(rollout)
        self._step = step
        due, signals_due = self._due()
        if not due and not signals_due:
            return None
        before = self._snapshot()
        rate = self._learning_rate.at(step)
        terms, imitation = [], []
        for _ in range(due):
            terms.append(self._descend(rate))
            if self._cloning is not None and (loss := self._cloning.learn(step)) is not None:
                imitation.append(loss)
        measured = [self._signals.update(self._real_transitions()) for _ in range(signals_due)]
        noted = self._concluded(terms, imitation, measured, before)
        self._updates += due
        self._signal_updates += signals_due
        lag = self.version - float(rollout.versions.double().mean())
        self.version += bool(due)
        metrics = noted.metrics()
        if self._earned:
            metrics |= episode_rewards(self._signals.names, np.concatenate(self._earned))
            self._earned.clear()
        return metrics | {"Policy/Learning Rate": rate, "Policy/Lag": lag}

    def flat_weights(self) -> NDArray[np.float32]:
        """Return the actor's weights and normalizer statistics as collectors load them."""
        return self._actor.flatten()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next update depends on; of the replay buffer, if it is saved at all, *views*."""
        return {
            "version": self.version,
            "counters": [self._step, self._updates, self._signal_updates],
            "agents": [sorted(map(list, agents)) for agents in self._recent],
            "beginnings": list(self._beginnings),
            "generator": self._generator.get_state(),
            "actor": _copies(self._actor),
            "critics": _copies(self._critics),
            "log_coefficients": self._log_coefficients.detach().clone(),
            "values_before": list(self._values_before),
            "losses_before": dict(self._losses_before),
            "optimizer": self._optimizer.state_dict(),
            "signals": self._signals.state_dict(),
            "episodes": self._episodes.state_dict(),
            "cloning": None if self._cloning is None else self._cloning.state_dict(),
            "replay": self._replay.state_dict() if self.config.hyperparameters.save_replay_buffer else None,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; without a saved replay buffer, with an empty one."""
        self.version = state["version"]
        self._step, self._updates, self._signal_updates = state["counters"]
        self._recent.clear()
        self._recent.extend({(simulator, agent) for simulator, agent in agents} for agents in state["agents"])
        self._beginnings = list(state.get("beginnings", self._beginnings))  # older checkpoints have none
        self._generator.set_state(state["generator"].cpu())
        self._actor.load_state_dict(state["actor"])
        self._critics.load_state_dict(state["critics"])
        self._log_coefficients.copy_(state["log_coefficients"])
        self._values_before = list(state["values_before"])
        self._losses_before = dict(state.get("losses_before", {}))  # older checkpoints have none
        self._optimizer.load_state_dict(state["optimizer"])
        self._signals.load_state_dict(state["signals"])
        self._episodes.load_state_dict(state["episodes"])
        if self._cloning is not None and state["cloning"] is not None:
            self._cloning.load_state_dict(state["cloning"])
        if state["replay"] is not None and self.config.hyperparameters.save_replay_buffer:
            self._replay.load_state_dict(state["replay"])

    # Experience -------------------------------------------------------------------------------------------------

    def _store(self, rollout: Rollout) -> None:
        """Add a round to the buffer and its observations to the statistics; refuse one that is not finite."""
        columns = {
            **{f"observations {index}": part for index, part in enumerate(rollout.observations)},
            **{f"next observations {index}": part for index, part in enumerate(rollout.next_observations)},
            "continuous": rollout.continuous,
            "rewards": rollout.rewards,
            "group rewards": rollout.group_rewards,
        }
        columns = {name: part for name, part in columns.items() if part.is_floating_point()}
        # A sum is cheap, and finite only if all is: only when it is not, the one column is looked for.
        if not math.isfinite(float(torch.stack([part.sum() for part in columns.values()]).sum())):
            found = first_infinite(columns.items())
            if found is not None:
                raise found
        self._replay.store(rollout)
        if self._ignores_end and bool(rollout.starts_episode.any()):
            firsts = (rollout.lengths.cumsum(0) - rollout.lengths)[rollout.starts_episode]
            self._beginnings = [
                torch.cat([known, part[firsts]])[-BEGINNINGS:]
                for known, part in zip(self._beginnings, rollout.observations, strict=True)
            ]
        if self._signals_learn:  # the game's own rewards are added up where they are played
            rewards = self._signals.evaluate(transitions_of(rollout, self.device, squashed=True))
            self._earned.append(self._episodes.add(rollout, segment_sums(rewards, rollout).cpu().numpy()))
        self._recent.append(set(zip(rollout.simulators.tolist(), rollout.agents.tolist(), strict=True)))
        if self._actor.normalizer is not None:
            self._actor.body.update_normalizer([part.to(self.device) for part in rollout.observations])

    def _due(self) -> tuple[int, int]:
        """Return how many gradient steps of the networks and of the reward signals are due."""
        hyper = self.config.hyperparameters
        steps = self._step - hyper.buffer_init_steps
        if len(self._replay) < min(hyper.batch_size, hyper.buffer_size) or steps <= 0:
            return 0, 0
        due = int(steps / hyper.steps_per_update) - self._updates
        signals_due = int(steps / hyper.reward_signal_steps_per_update) - self._signal_updates
        return max(due, 0), max(signals_due, 0) if self._signals_learn else 0

    def _draw(self) -> Replayed:
        """Draw what one gradient step learns from."""
        if self._length == 1:
            return self._replay.sample(self._drawn, self._generator)
        return self._replay.sample_sequences(self._drawn, self._length, self._generator)

    def _real_transitions(self) -> Transitions:
        """Draw steps for the reward signals to learn from: without padding."""
        drawn = self._draw()
        transitions = self._transitions(drawn)
        return transitions if drawn.real is None else transitions.select(drawn.real.nonzero().squeeze(1))

    def _transitions(self, drawn: Replayed) -> Transitions:
        """Return steps on the device, as reward signals see them."""
        return Transitions(
            observations=[part.to(self.device) for part in drawn.observations],
            index=drawn.index.to(self.device),
            next_index=drawn.next_index.to(self.device),
            continuous=drawn.continuous.to(self.device),
            discrete=drawn.discrete.to(self.device),
            rewards=drawn.rewards.to(self.device),
            group_rewards=drawn.group_rewards.to(self.device),
            terminated=drawn.terminated.to(self.device),
            ended=drawn.ended.to(self.device),
        )

    def _batch(self) -> Batch:
        """Draw steps, with their rewards as the signals see them now."""
        drawn = self._draw()
        transitions = self._transitions(drawn)
        encoded = self._actor.encode(transitions.observations)
        rows = len(drawn.index)
        if drawn.real is None:  # observations, then those that followed
            now, following = [part[:rows] for part in encoded], [part[rows:] for part in encoded]
            if rows != len(self._even_weight):  # a share of a batch
                self._even_weight = _even_weight(rows, self.device)
            weight = self._even_weight
        else:
            now = [part.index_select(0, transitions.index) for part in encoded]
            following = [part.index_select(0, transitions.next_index) for part in encoded]
            weight = mean_weights(drawn.real.to(self.device)).unsqueeze(1)
        return Batch(
            encoded=now,
            following=following,
            continuous=transitions.continuous,
            choices=transitions.discrete + self._first_choices if self._sizes else transitions.discrete,
            masks=None if drawn.masks is None else drawn.masks.to(self.device),
            memory=None if drawn.memories is None else drawn.memories.to(self.device),
            length=drawn.length,
            rewards=self._signals.evaluate(transitions),
            discounts=torch.where(transitions.terminated.unsqueeze(1), self._last_discounts, self._signals.gamma),
            terminated=transitions.terminated,
            weight=weight,
        )

    # Gradient steps ---------------------------------------------------------------------------------------------

    def _descend(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Take one gradient step of everything; return what `Heads.names` names."""
        batch = self._batch()
        coefficients = self._log_coefficients.exp()
        proposal = self._propose(batch)
        judged = self._critics.judge(batch.encoded, batch.continuous, batch.length)
        considered = judged.q if proposal.squashed is None else self._critics.consider(proposal.squashed.action)
        expected = expected_q(considered, proposal.branches)  # (2, R, S)
        bonus = (proposal.entropies @ (coefficients * self._shares)).unsqueeze(1)  # (R, 1)

        following = self._following_values(batch)
        q_error = chosen_q(judged.q, batch.choices) - torch.addcmul(batch.rewards, batch.discounts, following)
        v_error = judged.v - (torch.minimum(expected[0], expected[1]) + bonus)
        part = batch.weight * (1.0 / len(self._signals))
        by_q, by_v = q_error * part, v_error * part
        self._critics.backward(chosen_q_gradient(by_q, batch.choices, judged.q.shape[3]), by_v)
        self._ascend(proposal, considered[0], coefficients, batch.weight)
        # d loss / d log alpha = entropy - target entropy
        entropies = (proposal.entropies * batch.weight).sum(0)  # (E,)
        torch.sub(entropies, self._target_entropies, out=self._gradients.coefficients)

        self._optimizer.step(learning_rate)
        terms = (
            torch.sum((expected[0].mean(1, keepdim=True) + bonus) * batch.weight).neg_(),
            torch.sum(v_error * by_v) * 0.5,
            torch.linalg.vector_norm(self._gradients.actor),  # behind the step: averaged, where processes share it
            torch.linalg.vector_norm(self._gradients.critics),
        )
        self._critics.track(self.config.hyperparameters.tau)
        spread = [] if proposal.squashed is None else [proposal.squashed.log_sigma.mean().view(1)]
        return torch.cat(
            [
                torch.stack(terms),
                torch.sum(q_error * by_q, (1, 2)) * 0.5,
                torch.sum(judged.v * batch.weight, 0),
                entropies,
                coefficients,
                *spread,
            ]
        )

    def _following_values(self, batch: Batch) -> Float[Tensor, "R S"]:
        """Return what the target expects after each step, where a signal goes on beyond an episode's end there too."""
        following = self._critics.foresee(batch.encoded, batch.following, batch.length)
        if not self._ignores_end:
            return following
        beginnings = self._critics.begin(self._actor.encode([part.to(self.device) for part in self._beginnings]))
        return beyond_termination(following, batch.terminated, beginnings, self._signals.ignores_termination)

    def _propose(self, batch: Batch) -> Proposal:
        """Return what the policy would do now where a batch was observed."""
        trail = self._actor.body.record(batch.encoded, batch.memory, length=batch.length)
        head = self._actor.head(trail.features)
        columns = self._columns
        squashed, entropies = None, list[Tensor]()
        branches = []
        for start, stop in self._bounds:
            logits = head[:, 2 * columns + start : 2 * columns + stop]
            log_p = masked_logits(logits, None if batch.masks is None else batch.masks[:, start:stop]).log_softmax(1)
            p = log_p.exp()
            branches.append(Branch(log_p, p, torch.sum(p * log_p, 1).neg_()))
            entropies.append(branches[-1].entropy.unsqueeze(1))
        if columns:
            noise = torch.randn(self._drawn * self._length, columns, generator=self._generator)
            noise = own_rows(noise, self._length).to(self.device)
            squashed = draw_squashed(head[:, :columns], head[:, columns : 2 * columns], noise)
            entropies.append(squashed.log_prob.neg().unsqueeze(1))
        joined = entropies[0] if len(entropies) == 1 else torch.cat(entropies, 1)
        return Proposal(trail, squashed, branches, joined)

    def _ascend(
        self,
        proposal: Proposal,
        q1: Float[Tensor, "R S K"],
        coefficients: Float[Tensor, " E"],
        weight: Float[Tensor, "R 1"],
    ) -> None:
        """Write the gradient of minus the soft value by the actor's weights."""
        by_head: list[Tensor] = []
        if proposal.squashed is not None:
            by_q1 = expected_q_slope(proposal.branches, weight, q1.shape[1]).neg_()
            by_action = self._critics.by_action(by_q1)
            by_head += squashed_gradient(proposal.squashed, by_action, weight * coefficients[-1])
        if proposal.branches:
            q = q1.mean(1)
            share = weight * (1.0 / len(proposal.branches))
            for index, (branch, (start, stop)) in enumerate(zip(proposal.branches, self._bounds, strict=True)):
                slope = branch_objective_gradient(branch, q[:, start:stop], coefficients[index])
                by_head.append(slope.mul_(share))
        joined = torch.cat(by_head, 1)
        head = self._actor.head
        head.backward(proposal.trail.features, joined)
        self._actor.body.backward(proposal.trail, head.by_inputs(joined))

    # Guards ------------------------------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            self._optimizer.snapshot(),
            [part.clone() for part in self._critics.target.parameters()],
            self._signals.snapshot(),
            None if self._cloning is None else self._cloning.snapshot(),
        )

    def _restore(self, before: Snapshot) -> None:
        if self._cloning is not None and before.cloning is not None:
            self._cloning.restore(before.cloning)
        self._optimizer.restore(before.optimizer)
        for part, saved in zip(self._critics.target.parameters(), before.target, strict=True):
            part.copy_(saved)
        self._signals.restore(before.signals)

    def _concluded(
        self,
        terms: list[Float[Tensor, " terms"]],
        imitation: list[Float[Tensor, ""]],
        measured: list[dict[str, Float[Tensor, ""]]],
        before: Snapshot,
    ) -> Notes:
        """Copy what was noted from the device, at once; the mean over processes that share the steps.

        `terms` are those of the gradient steps, `imitation` the losses beside them, `measured` what the reward signals
        say of their own steps. Take everything back and raise `Diverged` if something was not finite or exploded.
        """
        losses = {LOSS: imitation} if imitation else {}
        for name in measured[0] if measured else ():
            losses[name] = [one[name] for one in measured]
        finite = [self._signals.is_finite()] if self._signals_learn else []
        if self._cloning is not None:
            finite.append(self._cloning.is_finite())
        others = [torch.stack(column) for column in (*losses.values(), finite) if column]
        flat = torch.cat([*terms, *others])
        average(flat)
        numbers = iter(flat.tolist())
        noted = Notes(
            self._heads,
            [list(islice(numbers, len(row))) for row in terms],
            {name: list(islice(numbers, len(column))) for name, column in losses.items()},
        )
        diagnosis = noted.diagnosis(self._values_before, self._losses_before)
        if diagnosis is None and not all(flag == 1.0 for flag in numbers):
            spoiled = self._signals.spoiled() if self._signals_learn else None
            diagnosis = Diverged("weights by imitation" if spoiled is None else f"weights of {spoiled}")
        if diagnosis is not None:
            self._restore(before)
            raise diagnosis
        self._values_before = noted.values() or self._values_before
        self._losses_before |= noted.sizes()
        return noted


def _even_weight(rows: int, device: torch.device) -> Float[Tensor, "R 1"]:
    return torch.full((rows, 1), 1.0 / rows, device=device)


def _copies(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}
