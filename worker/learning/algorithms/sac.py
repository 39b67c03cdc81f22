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
    the mean over signals. Rewards of a batch are computed again with the signals' networks of that moment.
 2. One entropy coefficient for all continuous columns and one for each branch, from `init_entcoef` on. Target entropies
    are -C nats for the columns together and 0.2 ln(choices) for each branch.
 3. All losses are taken at the same weights; then policy, critics and coefficients step together. ML-Agents has three
    Adams of one learning rate; one Adam over all weights does the same, since it treats each number by itself.
 4. `steps_per_update` agent steps for each gradient step, counted from `buffer_init_steps` on; below 1 there are more
    gradient steps than agent steps. Steps that came in before the buffer held a batch are made up for. The signals' own
    networks have their own rate and draw batches of their own. Behavioral cloning does one of its updates for each
    gradient step.
 5. Observations are normalised by statistics that merge every round before it is learned from, and change with the
    policy's version alone; the critics see what the actor has encoded.
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
    coefficients again on resume.
 i. No `1e-7` inside logarithms (`functional.squashed`, `functional.distributions`).
 j. The coefficient of a kind of action that a behavior does not have is not reported; ML-Agents reports NaN.
 k. `n` intervals are `n` gradient steps. ML-Agents counts from 1 and is always one behind.
 l. Beyond a termination, signals that ignore it expect the mean target value of the latest `BEGINNINGS` beginnings of
    episodes (ADR 7). ML-Agents takes that of the terminal observation, which no step begins in and nothing corrects.

What it does not do: collect, count steps, write files, decide when to stop. Guards, and what ranks that learn as one
exchange, are in `off_policy`. Dimensions as in `worker.learning.functional`; `R` rows of a batch, `K` outputs of a
Q network for each signal, `E` entropy coefficients: the branches', then the columns'.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ludus.config.behavior import SACConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.algorithms.bc import cloning_of
from worker.learning.algorithms.off_policy import Batch, OffPolicyAlgorithm, ReplayedExperience
from worker.learning.algorithms.sac_stats import Heads, SACTerms
from worker.learning.fast import sac as by_hand
from worker.learning.fast.adam import FlatAdam
from worker.learning.fast.switch import covers
from worker.learning.functional.returns import beyond_termination
from worker.learning.functional.soft_values import chosen_q, expected_q
from worker.learning.networks.soft_actor_critic import SoftActorCritic
from worker.learning.rewards.signals import SignalSet


class SAC(OffPolicyAlgorithm):
    """Actor, critics, coefficients, optimizer and replay buffer of one behavior."""

    model: SoftActorCritic

    def __init__(
        self,
        config: SACConfig,
        spec: BehaviorSpec,
        device: torch.device,
        seed: int,
        signals: SignalSet,
        expert: DemonstrationBuffer | None = None,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        self.generator = torch.Generator().manual_seed(seed)
        self._build = partial(SoftActorCritic, config, spec, len(signals), device, self.generator)
        self.model = model = self._build()
        self.actor = model.actor
        groups = model.named_parameters()
        self.optimizer = FlatAdam([item for group in groups for item in group])
        sizes = [sum(part.numel() for _, part in group) for group in groups]
        self._actor_gradient, self._critic_gradient, _ = torch.split(self.optimizer.gradient, sizes)
        experience = ReplayedExperience(config, spec, device, model.actor, signals, self.generator)
        self._by_hand = covers(model.actor.layout)
        # Where nothing is differentiated automatically torch need not keep books for it: a fifth of an update's time.
        automatic = not self._by_hand or experience.signals_learn or config.behavioral_cloning
        self.mode = torch.no_grad if automatic else torch.inference_mode
        self._heads = Heads(signals.names, len(model.sizes), bool(model.columns))
        self.term_names = self._heads.names
        super().__init__(
            config,
            device,
            signals,
            experience,
            cloning_of(config, model.actor, expert, experience.length, seed),
            stored={
                "actor": model.actor,
                "critics": model.critics,
                "log_coefficients": model.log_coefficients,
                "optimizer": self.optimizer,
            },
            changed=model.critics.target.parameters(),
        )

    def metrics_of(self, means: dict[str, float]) -> dict[str, float]:
        """Return metrics of the terms' means over an update."""
        return self._heads.metrics_of(means)

    def gradient_step(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Draw a batch and take one gradient step of everything."""
        return self.take_step(self.experience.batch(), learning_rate)

    def take_step(self, batch: Batch, learning_rate: float) -> Float[Tensor, " terms"]:
        """Take one gradient step of everything; return the terms of `Heads.names`."""
        model, noise = self.model, self.experience.noise(self.model.columns)
        following = self.following_values(batch)
        if self._by_hand:
            terms = by_hand.differentiate(model, batch, noise, following)
        else:
            self.optimizer.zero_gradient()
            with torch.enable_grad():
                loss, terms = self.loss(batch, noise, following)
                torch.autograd.backward([loss])
        self.optimizer.step(learning_rate)
        model.critics.track(self.config.hyperparameters.tau)
        # Behind the step the gradients are the means over all ranks.
        norms = [torch.linalg.vector_norm(part) for part in (self._actor_gradient, self._critic_gradient)]
        return terms.joined(*norms)

    def loss(
        self, batch: Batch, noise: Float[Tensor, "R C"] | None, following: Float[Tensor, "R S"]
    ) -> tuple[Float[Tensor, ""], SACTerms]:
        """Return the scalar that one gradient step descends: the losses of Q1, Q2, V, policy and coefficients.

        They have no weight in common: targets are constants, and so are the critics' weights in the policy's loss.
        """
        model, critics = self.model, self.model.critics
        coefficients = model.log_coefficients.detach().exp()  # alpha
        head, _ = model.actor(batch.encoded, batch.memory, length=batch.length)
        actions = model.actions(head, batch.masks, noise)
        predicted = critics.q_values(batch.encoded, batch.continuous, batch.length)
        q = predicted.q.detach()
        if actions.squashed is not None:
            q = critics.q_values_of(predicted, actions.squashed.action)
        expected = expected_q(q, actions.branches)  # (2, R, S) of the policy's actions
        bonus = (actions.entropies @ (coefficients * model.shares)).unsqueeze(1)  # (R, 1)

        q_target = batch.rewards + batch.discounts * following
        v_target = (torch.minimum(expected[0], expected[1]) + bonus).detach()
        weight = batch.weight / len(self.signals)
        q_losses = 0.5 * torch.sum((chosen_q(predicted.q, batch.choices) - q_target).square() * weight, (1, 2))
        value_loss = 0.5 * torch.sum((predicted.v - v_target).square() * weight)
        policy_loss = -torch.sum((expected[0].mean(1, keepdim=True) + bonus) * batch.weight)
        entropies = torch.sum(actions.entropies * batch.weight, 0).detach()  # (E,)
        coefficient_loss = torch.sum(model.log_coefficients * (entropies - model.target_entropies))
        terms = SACTerms(
            policy_loss=policy_loss.detach(),
            value_loss=value_loss.detach(),
            q_losses=q_losses.detach(),
            values=torch.sum(predicted.v.detach() * batch.weight, 0),
            entropies=entropies,
            coefficients=coefficients,
            log_sigma=None if actions.squashed is None else actions.squashed.log_sigma.detach().mean(),
        )
        return q_losses.sum() + value_loss + policy_loss + coefficient_loss, terms

    def following_values(self, batch: Batch) -> Float[Tensor, "R S"]:
        """Return what the target expects after each step, where a signal goes on beyond an episode's end there too."""
        critics = self.model.critics
        following = critics.target_values(batch.encoded, batch.following, batch.length)
        if not self.experience.ignores_end:
            return following
        beginnings = critics.initial_values(self.experience.encoded_beginnings())
        return beyond_termination(following, batch.terminated, beginnings, self.signals.ignores_termination)
