"""Proximal policy optimization with a clipped surrogate (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Each update takes one rollout of the current policy and, for `num_epoch` passes over shuffled minibatches, descends

    -min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A) + 0.5 * value loss - beta * entropy

Details, as in ML-Agents 1.1.0 (`ppo/optimizer_torch.py`, `trainer/on_policy_trainer.py`) unless marked:
 1. Advantages by GAE for each reward signal with its own gamma, averaged over signals, normalised over the rollout.
 2. The critic's loss is the squared error, coefficient 0.5 (see b).
 3. Adam over actor and critic together (betas 0.9 and 0.999, epsilon 1e-8); no early stop by KL (but see m). Gradients
    are clipped only where `max_grad_norm` (Ludus' own key) says so.
 4. Learning rate, epsilon and beta follow their schedules at the policy's step when the update begins.
 5. Shuffling is over steps; a remainder that fills no minibatch is left out of that pass.
 6. Observations are normalised once per update: the statistics do not change during it.
 7. With a memory, segments are cut into sequences of `sequence_length` steps, the last one padded, and sequences are
    shuffled; `batch_size` is rounded down to whole ones. Actor and critic start each sequence with what they
    remembered: the actor what it did when it acted, the critic what it does now (`algorithms.recurrent_critic`).
 8. Signals that learn do so on every minibatch, after the step of actor and critic. Then behavioral cloning, if there
    is any, has its turn once.

Deviations from ML-Agents, on purpose:
 a. The ratio is the one of the whole action: log-probabilities are *summed* over columns and branches, as in the paper.
    ML-Agents clips each column and branch by itself and takes the mean. With one column or branch that is the same;
    with more, its objective is no bound on the change of the policy. The entropy bonus is the joint entropy, so that
    the weight of `beta` against the surrogate stays what it is in ML-Agents. Measured on toys (mean of three seeds,
    same updates): where columns or branches must be right together the joint ratio is ahead (two branches, half-way:
    92 % against 89 %), where each is rewarded by itself it clips sooner and is behind (five branches: 96 against 98 %;
    squared distance to 8 and 20 targets: 0.038 against 0.031 and 0.136 against 0.111). No difference with one.
 b. ML-Agents means to clip values around those before the update by epsilon, but the returns overwrite the old values
    under the same key, so that what acts is the plain squared error (#6281), on which its users have tuned. It is the
    default here too; `clip_value_loss: true` (Ludus' own key) is the intention. Measured on CartPole (8 environments,
    buffer 1,024 and 2,048, two seeds each): plain 475 after 20,000 to 40,000 steps; clipped, whose critic moves by 0.2
    an update while returns are near 50, after 35,000 to more than 60,000.
 c. The normalizer merges a rollout *after* the update. The policy that is updated is then exactly the one that acted,
    and every ratio is 1 on the first minibatch. ML-Agents merges before, and starts with ratios that are not 1. Actor
    and critic share one normalizer, and it merges once also with `shared_critic`.
 d. No `1e-7` inside logarithms (see `functional.distributions`).
 e. `Losses/Policy Loss` keeps its sign; ML-Agents reports its absolute value.
 f. A rollout smaller than `batch_size` is learned from as one minibatch; ML-Agents would silently skip it.
 g. An update that meets a value that is not finite or explodes is taken back as a whole, signals and cloning included,
    and raises `Diverged` (`worker.learning.algorithms.numeric_check`).
 h. `critic_learning_rate` (Ludus' own key) is the step size of the critic's parameters, on the actor's schedule.
 i. The critic's memory is each agent's own; in ML-Agents all agents share one (see `algorithms.recurrent_critic`).
 j. Advantages are normalised over the steps, not over padding.
 k. `vtrace: true` (Ludus' own key) corrects for steps that an older policy took (Espeholt et al. 2018): returns and
    advantages are those of `functional.returns` with `rho = min(1, pi / mu)`, `pi` being the policy before the update.
    The ratio that is clipped stays the one to the policy `mu` that acted, which weights each step already, so that an
    advantage goes without its own `rho` (as Petrenko et al. 2020).
 l. The value behind a termination, for signals that go on beyond it, is the mean value of the rollout's first steps of
    episodes. ML-Agents takes the value of the terminal observation, which is never learned. On MountainCar-v0 with RND,
    whose rewards are above 0, the mean RND value fell to -357 in 450,000 steps so, twice as low every 25,000; with the
    same seed the last 100 episodes are worth -143 so, and -120 as it is here.
 m. `decoupled_objective: true` (Ludus' own key) clips the ratio to `pi` instead of the one to `mu`, and weights each
    step by `pi / mu`, at most 100 (Hilton et al. 2021, with `pi` as the proximal policy):

        -(pi / mu) * min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A)

    As the weight is not below 0, it goes into the advantage, and the losses stay as they are. Each update may go as far
    again, where the clip around `mu` is a brake: with steps of eight updates ago a ball on a plate ends at 20 of 20,
    with V-trace at 17 and with neither at 8; CartPole, whose learning rate is larger, ends at 158 of 200 instead of
    200 (benchmarks/README.md).
 n. `max_policy_lag` (Ludus' own key) leaves steps of older policies out of the minibatches. Values, memories, teams and
    the sums of rewards still take all steps; advantages are normalised over those that are learned from.
 o. `target_kl`, `desired_kl` and `normalize_values` (Ludus' own keys): `on_policy` and `networks.value_normalizer`.

What it does not do: collect, count steps, write files, decide when to stop. `update` is `on_policy.OnPolicy.update`,
which POCA shares. Dimensions as in `worker.learning.functional`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ludus.collector.segments import SegmentEnd
from ludus.protocol.spec import BehaviorSpec
from worker.experience.rollout import Rollout
from worker.experience.transitions import sequences_of, transitions_of
from worker.learning.algorithms.batch import Batch, Estimates, Recurrence, batch_with_targets
from worker.learning.algorithms.on_policy import VALUE_COEFFICIENT, Experience, Loss, OnPolicy, Rates
from worker.learning.algorithms.ppo_stats import entropies, value_estimates
from worker.learning.algorithms.recurrent_critic import unroll
from worker.learning.algorithms.training_state import Changed
from worker.learning.fast import ppo as by_hand
from worker.learning.fast.switch import covers
from worker.learning.functional.losses import clipped_surrogate, clipped_value_loss, mean_of_rows, squared_error
from worker.learning.networks.actor_critic import ActorCritic, Prediction
from worker.learning.networks.encoder import Encoded


@dataclass(frozen=True)
class PPOExperience(Experience):
    """A rollout with its targets, frozen for all epochs."""

    recurrence: Recurrence | None
    """None without a memory."""
    means: dict[str, Tensor]
    """The mean values of the steps in the units of rewards, where the batch has others; by the name of the metric."""

    def estimates(self) -> dict[str, Tensor]:
        """As `Experience`."""
        return self.means


class PPO(OnPolicy[PPOExperience, Batch]):
    """Actor, critic, optimizer and reward signals of one behavior."""

    model: ActorCritic

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As `OnPolicy`."""
        super().__init__(*arguments, **named)
        critic = self.model.critic.body
        plain = critic is None or critic.layout.plain
        self._by_hand = type(self).loss is PPO.loss and covers(self.actor.layout) and plain
        # Inference mode saves a tenth of the time, but autograd does not work in it.
        automatic = not self._by_hand or self.signals.learns or self.cloning is not None
        self._mode: type[AbstractContextManager[None]] = torch.no_grad if automatic else torch.inference_mode

    def build_model(self, spec: BehaviorSpec) -> ActorCritic:
        """Return actor and critic, new."""
        model = ActorCritic(
            spec,
            self.config.network_settings,
            signals=len(self.signals),
            shared_critic=self.config.hyperparameters.shared_critic,
            generator=self.generator,
            normalize_values=self.config.hyperparameters.normalize_values,
        )
        self.actor, self.privileged, self.critic_memory_size = model.actor, model.privileged, model.memory_size
        return model

    def changed(self) -> list[Changed]:
        """Return the statistics of returns, which an update changes, if there are any."""
        return [] if self.model.value_normalizer is None else [self.model.value_normalizer]

    def parameter_groups(self) -> list[list[tuple[str, nn.Parameter]]]:
        """Return the parameters, those of the critic apart if they have a learning rate of their own."""
        (named,) = super().parameter_groups()
        if self.config.hyperparameters.critic_learning_rate is None:
            return [named]
        critic = [item for item in named if item[0].startswith("critic.")]
        return [[item for item in named if not item[0].startswith("critic.")], critic]

    def update(self, rollout: Rollout, step: int) -> dict[str, float]:
        """As `OnPolicy.update`."""
        with self._mode():
            return super().update(rollout, step)

    def loss(self, experience: PPOExperience, minibatch: Batch, rates: Rates) -> Loss:  # noqa: ARG002  (has it all)
        """Return the clipped surrogate, the value loss and the entropy bonus of a minibatch, as one scalar."""
        real = minibatch.real
        joint, values = self.evaluate(minibatch)
        log_ratio = joint.log_prob - minibatch.log_prob
        policy_loss = clipped_surrogate(log_ratio, minibatch.advantage, rates.epsilon, real)
        if self.config.hyperparameters.clip_value_loss:
            value_loss = clipped_value_loss(values, minibatch.values, minibatch.returns, rates.epsilon, real)
        else:
            value_loss = squared_error(values, minibatch.returns, real)
        entropy = mean_of_rows(joint.entropy, real)
        objective = policy_loss + VALUE_COEFFICIENT * value_loss - rates.beta * entropy
        terms = {"policy loss": policy_loss, "value loss": value_loss}
        return Loss(objective, {**terms, **entropies(joint, self.actor.log_sigma, real)}, log_ratio)

    def evaluate(self, minibatch: Batch) -> Prediction:
        """Return the policy's distribution at the steps of a minibatch, and their values `(N, S)`."""
        return self.model.evaluate(
            minibatch.encoded,
            minibatch.continuous,
            minibatch.discrete,
            minibatch.masks,
            actor_memory=minibatch.actor_memory,
            critic_memory=minibatch.critic_memory,
            length=minibatch.length,
        )

    def differentiate(
        self, experience: PPOExperience, minibatch: Batch, rates: Rates
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Write the gradient of `loss` to the weights' `grad`: by hand where that is faster (`fast.switch`)."""
        if not self._by_hand:
            return super().differentiate(experience, minibatch, rates)
        return self._differentiate_by_hand(minibatch, rates.epsilon, rates.beta)

    def _differentiate_by_hand(
        self, minibatch: Batch, epsilon: float | Tensor, beta: float
    ) -> tuple[dict[str, Tensor], Tensor]:
        return by_hand.differentiate(
            self.model,
            minibatch,
            epsilon=epsilon,
            beta=beta,
            value_coefficient=VALUE_COEFFICIENT,
            clip_value_loss=self.config.hyperparameters.clip_value_loss,
        )

    def compile(self) -> None:
        """Fuse the operations by `torch.compile`: faster updates, after some 20 s once. Needs a C++ compiler."""
        if self._by_hand:
            compiled = torch.compile(self._differentiate_by_hand)
            # As a number epsilon would be compiled in, again for each value of its schedule.
            self._differentiate_by_hand = lambda minibatch, epsilon, beta: compiled(  # type: ignore[method-assign]
                minibatch, torch.tensor(epsilon, device=self.device), beta
            )
        else:
            self.loss = torch.compile(self.loss)  # type: ignore[method-assign]  # replaced by its faster self

    def prepare(self, rollout: Rollout) -> PPOExperience:
        """Return the batch with its targets: values, rewards and advantages by the weights of before."""
        transitions = transitions_of(rollout, self.device, self.actor.layout.kind)
        pool = self.encode(transitions.observations)  # all steps, then the segments' successors
        estimates, recurrence = self.estimate(rollout, pool)
        terminated = rollout.endings == SegmentEnd.TERMINATED
        lambd = self.config.hyperparameters.lambd
        correction = self.correction(rollout, pool, transitions)
        fresh = correction.fresh
        batch, episodes = batch_with_targets(
            rollout, transitions, pool, estimates, terminated, self.signals, lambd, correction
        )
        means, normalizer = dict[str, Tensor](), self.model.value_normalizer
        if normalizer is not None and (fresh is None or bool(fresh.any())):  # else nothing is learned
            means = dict(zip(value_estimates(self.signals.names), batch.values.unbind(1), strict=True))
            normalizer.merge(batch.returns, batch.values, self.model.critic.heads)
            values, returns = normalizer.normalized(batch.values), normalizer.normalized(batch.returns)
            batch = replace(batch, values=values, returns=returns)
        if fresh is not None and recurrence is None:
            batch = batch.select(fresh.nonzero().squeeze(1).to(self.device))
        elif fresh is not None and recurrence is not None:
            recurrence = recurrence.select(fresh[recurrence.sequences.first].nonzero().squeeze(1))
        return PPOExperience(batch, transitions, episodes, fresh, recurrence, means)

    def minibatches(self, experience: PPOExperience) -> Iterator[Batch]:
        """Yield shuffled minibatches of each epoch."""
        hyper = self.config.hyperparameters
        for _ in range(hyper.num_epoch):
            yield from experience.batch.minibatches(hyper.batch_size, self.generator, experience.recurrence)

    def estimate(self, rollout: Rollout, pool: Encoded) -> tuple[Estimates, Recurrence | None]:
        """Return the values of all steps and of what followed each segment, and the memories that belong to them."""
        if not self._length:
            values, _ = self.model.values(pool)
            return Estimates(values[: rollout.steps], values[rollout.steps :]), None

        def forward(rows: Tensor, memory: Tensor, length: int) -> tuple[Tensor, Tensor]:
            values, after = self.model.values([part[rows] for part in pool], memory, length=length)
            assert after is not None, "a recurrent critic returns its memory"
            return values, after

        sequences = sequences_of(rollout.lengths, self._length)
        assert rollout.memories is not None, "recurrent policies leave their memories"
        acted = rollout.memories[sequences.first].to(self.device)
        if self.model.critic.body is None:  # one memory: the critic goes on from what the actor remembered
            initial = rollout.memories[rollout.firsts].to(self.device)
        else:
            initial = self.memories.before(rollout)
        unrolled = unroll(rollout, sequences, initial, forward)
        self.memories.keep(rollout, unrolled.after)
        following = torch.arange(rollout.steps, rollout.steps + rollout.segments, device=self.device)
        bootstrap, _ = forward(following, unrolled.after, 1)
        return Estimates(unrolled.features, bootstrap), Recurrence(sequences, acted, unrolled.before)
