"""Deep Q-learning: values of discrete actions, from a replay buffer (Mnih et al. 2015,
https://www.nature.com/articles/nature14236), with what later work made of it, each by choice:

    double        van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461
    dueling       Wang et al. 2016, https://arxiv.org/abs/1511.06581
    prioritized   Schaul et al. 2016, https://arxiv.org/abs/1511.05952
    n_step        Sutton 1988; as in Hessel et al. 2018, https://arxiv.org/abs/1710.02298
    memory        Hausknecht & Stone 2015, https://arxiv.org/abs/1507.06527; with stored states and `burn_in` as in R2D2
                  (Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX)

Each gradient step draws transitions and lets, with `y` frozen,

    Q descend   w * huber(Q(s, a) - y)      y = R + gamma^m Q_target(s_m, a*)       (R alone where the task ended)

    R  = sum of gamma^k r_k over m steps    m = n_step, or fewer where the episode or what is known of it ends
    a* = the best allowed choice at s_m     by Q (double) or by Q_target
    w  = (N p)^-beta, relative to the largest of the batch; p is the probability with which the step was drawn
         (prioritized: in proportion to |Q - y|^alpha when it was last drawn); 1 where all are drawn alike

and Q_target moves the part `tau` of its way to Q, every `target_update_interval` gradient steps. `huber` has a slope of
at most 1: Mnih et al. clip the error. The policy takes the best choice, or with probability `epsilon` any
(`ludus.collector.epsilon_greedy`); `epsilon` follows its schedule and is published with the weights.

Details:
 1. Every reward signal has a Q of its own with its own gamma. The policy takes the choice with the largest sum over
    signals. The loss is the mean over signals. Rewards of a batch are computed with the signals' networks of that time.
 2. Several branches are independent heads: each has its own Q, error and best choice; the loss is the mean over them.
    The error by which a step is drawn is the mean over signals and branches.
 3. Steps that `n_step` looks ahead are not corrected for the policy that took them (as in Hessel et al.).
 4. `beta` rises linearly from `importance_exponent` to 1 at `max_steps`. New steps have the largest priority so far.
 5. The allowed choices at `s_m` are known if a step was taken there. At the last observation of a truncated episode,
    and where an agent has not gone on yet, every choice counts as allowed.
 6. Steps, counters, normalisation and reward signals as in SAC (`algorithms.sac`, 4 and 5); beyond a termination,
    signals that ignore it expect the mean of the best values at the beginnings of episodes (ADR 7).

 7. Recurrent: batches of `batch_size // sequence_length` sequences, at least one, and `n_step` looks beyond their end.
    Network and target begin with the memory that the actor had there. The first `burn_in` steps count in no loss, but
    where a sequence begins with its episode, whose memory is exact, and always but for its last step. A sequence is
    drawn by 0.9 of the largest error of its steps and 0.1 of their mean (`prioritized`), under its first step.

Deviations from the papers, on purpose:
 a. Adam instead of RMSProp; `tau` below 1 moves the target a little at each step (Lillicrap et al. 2016).
 b. Both streams of `dueling` are single layers behind the common body (`q_values`); theirs are two layers.
 c. Gradients are not scaled down behind the streams, and not clipped.
 d. Sequences begin at any step and end with their episode; those of R2D2 overlap by half. Its rescaled values are left
    out, and gradients flow through `burn_in` steps, too.

ML-Agents 1.1.0 has DQN as an example of a plug-in (`mlagents_trainer_plugin/dqn`), whose keys are these. It differs:
it takes the best choice *at s* where `a*` is wanted, has one branch only, ignores masks, ends its schedule of epsilon
after 20,000 steps, and exports a random choice as the deterministic action.

What it does not do: continuous actions, behavioral cloning (a configuration with it is refused). Stats are in
`DQN.term_names`, guards in `off_policy`. Dimensions as in `worker.learning.functional`; `Q` drawn sequences of `L`
steps (1 without a memory), of which `R` steps in all are learned from, `N` is `n_step`, `T = L + N - 1` the steps of a
sequence with those that the last one looks ahead, `M` choices of all branches.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ludus.config.plugins.dqn import DQNConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.priorities import Priorities
from worker.experience.replay import Replayed
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.learning.algorithms.off_policy import OffPolicyAlgorithm, ReplayedExperience
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.distributions import branch_bounds, masked_logits
from worker.learning.functional.returns import beyond_termination
from worker.learning.functional.schedules import Schedule
from worker.learning.networks.encoder import Encoded
from worker.learning.plugins.dqn.q_values import QNetwork
from worker.learning.rewards.signals import SignalSet, title

LARGEST_SHARE = 0.9
"""Of a sequence's largest error in what it is drawn by (`eta` of R2D2); the rest is the mean's."""


class Batch(NamedTuple):
    """Steps to learn from, on the device."""

    encoded: Encoded
    """`Q * L` rows."""
    following: Encoded
    """`Q` rows: `s_m`; with a memory `Q * (T + 1)` rows: all observations of each sequence."""
    choices: Int[Tensor, "R D"]
    """The choice of each branch, counted over all branches."""
    following_masks: Bool[Tensor, "R M"] | None
    returns: Float[Tensor, "R S"]
    """Of `m` steps."""
    discounts: Float[Tensor, "R S"]
    """`gamma^m`; 0 where nothing comes after."""
    terminated: Bool[Tensor, " R"]
    weights: Float[Tensor, " R"]
    """`w / R`."""
    rows: Int[Tensor, " Q"]
    """Of the replay buffer, for new priorities."""
    memory: Float[Tensor, "Q memory"] | None = None
    """Before each sequence."""
    learned: Int[Tensor, " R"] | None = None
    """With a memory: the rows of `encoded` that are learned from."""
    behind: Int[Tensor, " R"] | None = None
    """With a memory: the rows of `following` that are `s_m`."""


class DQN(OffPolicyAlgorithm):
    """Network, optimizer and replay buffer of one behavior."""

    model: QNetwork

    def __init__(
        self,
        config: DQNConfig,
        spec: BehaviorSpec,
        device: torch.device,
        seed: int,
        signals: SignalSet,
        expert: DemonstrationBuffer | None = None,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        assert expert is None, "the configuration refuses behavioral_cloning"
        hyper, self.generator = config.hyperparameters, torch.Generator().manual_seed(seed)
        self._build = partial(
            QNetwork,
            spec,
            config.network_settings,
            len(signals),
            head=config.head,
            dueling=hyper.dueling,
            generator=self.generator,
        )
        self.model = network = self._build().to(device)
        self.actor = network.actor
        self._epsilon = network.actor.head_parameters()["epsilon"].fill_(hyper.exploration_initial_eps)
        """With the actor's weights it is published to collectors."""
        self._bounds = branch_bounds(spec.actions.discrete_branches)
        self.optimizer = FlatAdam(network.trained_parameters())
        self._steps = torch.zeros((), dtype=torch.int64)
        """Gradient steps so far."""
        values = (f"Policy/{title(name)} Value" for name in signals.names)
        self.term_names = ("Losses/Value Loss", "Losses/Gradient Norm", "Losses/TD Error", *values)
        """The loss; the Euclidean norm of its gradient; the mean of `|Q - y|`; the mean of the best Q by signal."""
        self.priorities = Priorities(hyper.buffer_size, hyper.priority_exponent) if hyper.prioritized else None
        super().__init__(
            config,
            device,
            signals,
            ReplayedExperience(config, spec, device, network.actor, signals, self.generator),
            cloning=None,
            stored={
                "model": network,
                "optimizer": self.optimizer,
                "gradient_steps": self._steps,
            },
            changed=[*network.target_parameters(), self.priorities],
        )

    def store(self, rollout: Rollout) -> NDArray[np.int64]:
        """Add a round to the replay buffer; return the rows that hold it."""
        rows = super().store(rollout)
        if self.priorities is not None:
            self.priorities.add(rows)
        return rows

    def update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        """Store a round and take the gradient steps that are due; see `OffPolicyAlgorithm.update`."""
        version = self.version
        metrics = super().update(rollout, step)
        if self.version != version:  # the weights of collectors change with the version alone
            self.model.fold()
            hyper = self.config.hyperparameters
            first, last = hyper.exploration_initial_eps, hyper.exploration_final_eps
            steps = hyper.exploration_steps or self.config.max_steps
            self._epsilon.fill_(Schedule(hyper.exploration_schedule, first, last, steps).at(step))
        return None if metrics is None else {**metrics, "Policy/Exploration Rate": float(self._epsilon)}

    def gradient_step(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Draw a batch and take one gradient step; return the terms of `term_names`."""
        batch, hyper = self.batch(), self.config.hyperparameters
        self.optimizer.zero_gradient()
        with torch.enable_grad():
            loss, errors, values = self.loss(batch)
            torch.autograd.backward([loss])
        norm = self.optimizer.step(learning_rate)
        self._steps += 1
        if int(self._steps) % hyper.target_update_interval == 0:
            self.model.track(hyper.tau)
        if self.priorities is not None:
            drawn_by = errors
            if batch.learned is not None:
                drawn_by = sequence_errors(errors, batch.learned // self.experience.length, len(batch.rows))
            self.priorities.update(batch.rows.numpy(), drawn_by.cpu().numpy())
        return torch.cat([torch.stack((loss.detach(), norm, errors.mean())), values])

    def loss(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, " R"], Float[Tensor, " S"]]:
        """Return the scalar that one gradient step descends, `|Q - y|` of each step, the mean best Q of each signal."""
        q = self.model.q(batch.encoded, batch.memory)  # (Q * L, S, M)
        if batch.learned is not None:
            q = q[batch.learned]  # (R, S, M)
        choices = batch.choices.unsqueeze(1).expand(-1, q.shape[1], -1)
        chosen = q.gather(2, choices)  # (R, S, D)
        y = batch.returns.unsqueeze(2) + batch.discounts.unsqueeze(2) * self.following_values(batch)
        losses = F.smooth_l1_loss(chosen, y, reduction="none").mean((1, 2))
        errors = (chosen.detach() - y).abs().mean((1, 2))
        best = torch.stack([q.detach()[..., start:stop].amax(2) for start, stop in self._bounds]).mean((0, 1))
        return torch.sum(batch.weights * losses), errors, best

    @torch.no_grad()
    def following_values(self, batch: Batch) -> Float[Tensor, "R S D"]:
        """Return `Q_target(s_m, a*)`, where a signal goes on beyond an episode's end there too."""
        network, masks = self.model, batch.following_masks
        target = network.target_q(batch.following, batch.memory)
        chooser = network.q(batch.following, batch.memory) if self.config.hyperparameters.double else target
        if batch.behind is not None:
            target, chooser = target[batch.behind], chooser[batch.behind]
        following = self._best(target, masked_logits(chooser.sum(1), masks))
        if not self.experience.ignores_end:
            return following
        beginning = network.target_q(self.experience.encoded_beginnings())
        values = self._best(beginning, beginning.sum(1))
        ignores = self.signals.ignores_termination
        replaced = [
            beyond_termination(following[..., branch], batch.terminated, values[..., branch], ignores)
            for branch in range(len(self._bounds))
        ]
        return torch.stack(replaced, 2)

    def batch(self) -> Batch:
        """Draw sequences, with the steps that `n_step` looks ahead of each of their steps."""
        experience, hyper = self.experience, self.config.hyperparameters
        replay, length, ahead = experience.replay, experience.length, hyper.n_step
        weights = torch.ones(experience.drawn)
        if self.priorities is None:
            rows = torch.randint(len(replay), (experience.drawn,), generator=self.generator)
        else:
            rows, p = self.priorities.draw(experience.drawn, self.generator)
            beta = Schedule("linear", hyper.importance_exponent, 1.0, self.config.max_steps)
            weights = (len(replay) * p) ** -beta.at(experience.step)
            weights /= weights.max()
        drawn = replay.sequences(rows, length + ahead - 1)
        transitions = experience.transitions(drawn)
        assert drawn.real is not None, "sequences have it"
        count, real = len(rows), drawn.real.view(len(rows), -1)  # (Q, T)
        # A window of N steps for each of the L first steps of a sequence.
        windows = real.to(self.device).unfold(1, ahead, 1).flatten(0, 1)  # (Q * L, N)
        last = (windows.sum(1, keepdim=True) - 1).clamp(min=0)
        terminated = transitions.terminated.view(count, -1).unfold(1, ahead, 1).flatten(0, 1).gather(1, last).squeeze(1)
        rewards = self.signals.evaluate(transitions).view(*real.shape, -1).unfold(1, ahead, 1)  # (Q, L, S, N)
        returns, discounts = n_step_returns(rewards.transpose(2, 3).flatten(0, 1), self.signals.gamma, windows)
        goes_on = ~terminated.unsqueeze(1) | self.signals.ignores_termination
        chains = [part.view(count, -1, *part.shape[1:]) for part in transitions.observations]  # (Q, T + 1, ...)
        if drawn.memories is None:  # only the first observation is learned from, and only the last is bootstrapped from
            chains = [torch.stack((part[:, 0], part[:, -1]), 1) for part in chains]
        encoded = [
            part.view(count, -1, *part.shape[1:]) for part in self.actor.encode([part.flatten(0, 1) for part in chains])
        ]
        choices = transitions.discrete.view(*real.shape, -1)[:, :length].flatten(0, 1) + experience.first_choices
        batch = Batch(
            encoded=[part[:, :length].flatten(0, 1) for part in encoded],
            following=[part[:, 1:].flatten(0, 1) for part in encoded],
            choices=choices,
            following_masks=None if drawn.following_masks is None else drawn.following_masks.to(self.device),
            returns=returns,
            discounts=discounts * goes_on,
            terminated=terminated,
            weights=weights.to(self.device) / count,
            rows=rows,
        )
        if drawn.memories is None:
            return batch
        learned = counted(real[:, :length], drawn.memories, hyper.burn_in).flatten().nonzero().squeeze(1)
        sequences = learned // length
        steps = real.unfold(1, ahead, 1).sum(2).flatten()[learned]  # m
        behind = sequences * (real.shape[1] + 1) + learned % length + steps
        at = learned.to(self.device)
        return batch._replace(
            following=[part.flatten(0, 1) for part in encoded],
            choices=choices[at],
            following_masks=None if drawn.masks is None else masks_of_observations(drawn)[behind].to(self.device),
            returns=returns[at],
            discounts=batch.discounts[at],
            terminated=terminated[at],
            weights=weights[sequences].to(self.device) / len(learned),
            memory=drawn.memories.to(self.device),
            learned=at,
            behind=behind.to(self.device),
        )

    def state_dict(self) -> State:
        """Return everything that the next update depends on; of the replay buffer, if it is saved at all, *views*."""
        priorities = self.priorities if self.config.hyperparameters.save_replay_buffer else None
        return {**super().state_dict(), "priorities": None if priorities is None else priorities.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken; without a saved replay buffer, with an empty one."""
        super().load_state_dict(state)
        if self.priorities is not None and len(self.experience.replay):
            self.priorities.load_state_dict(state["priorities"], len(self.experience.replay))

    def _best(self, q: Float[Tensor, "R S M"], scores: Float[Tensor, "R M"]) -> Float[Tensor, "R S D"]:
        """Return Q of the choice of each branch that has the best score."""
        best = [scores[:, start:stop].argmax(1, keepdim=True) + start for start, stop in self._bounds]
        return q.gather(2, torch.cat(best, 1).unsqueeze(1).expand(-1, q.shape[1], -1))


def counted(real: Bool[Tensor, "Q L"], memories: Float[Tensor, "Q memory"], burn_in: int) -> Bool[Tensor, "Q L"]:
    """Return which steps of sequences are learned from: real ones, without the `burn_in` first of a sequence that
    begins with a stored memory, of which the last step counts however short it is. At an episode's beginning the
    memory is all 0, as for every network.
    """
    first = (real.sum(1) - 1).clamp(max=burn_in) * (memories != 0.0).any(1)
    return real & (torch.arange(real.shape[1]) >= first.unsqueeze(1))


def masks_of_observations(drawn: Replayed) -> Bool[Tensor, "O M"]:
    """Return what was allowed at each of the `T + 1` observations of each sequence, one sequence after the other."""
    assert drawn.real is not None
    assert drawn.masks is not None
    assert drawn.following_masks is not None
    behind = drawn.following_masks.unsqueeze(1)  # (Q, 1, M)
    at_steps = drawn.masks.view(len(behind), -1, behind.shape[2])  # (Q, T, M)
    return torch.cat([at_steps.where(drawn.real.view(*at_steps.shape[:2], 1), behind), behind], 1).flatten(0, 1)


def sequence_errors(errors: Float[Tensor, " R"], sequences: Int[Tensor, " R"], count: int) -> Float[Tensor, " Q"]:
    """Return what each of `count` sequences is drawn by: a mixture of the largest error of its steps and their mean
    (Kapturowski et al. 2019, section 2.3).
    """
    largest = errors.new_zeros(count).scatter_reduce(0, sequences, errors, "amax")
    mean = errors.new_zeros(count).scatter_reduce(0, sequences, errors, "mean", include_self=False)
    return torch.lerp(mean, largest, LARGEST_SHARE)


def n_step_returns(
    rewards: Float[Tensor, "W N S"], gamma: Float[Tensor, " S"], real: Bool[Tensor, "W N"]
) -> tuple[Float[Tensor, "W S"], Float[Tensor, "W S"]]:
    """Return each window's discounted sum of the rewards of its real steps, and gamma to the power of their number."""
    steps = torch.arange(rewards.shape[1], device=rewards.device).unsqueeze(1)
    factors = gamma**steps * real.unsqueeze(2)  # (W, N, S)
    return torch.sum(rewards * factors, 1), gamma ** real.sum(1, keepdim=True)
