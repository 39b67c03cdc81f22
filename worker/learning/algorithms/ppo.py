"""Proximal policy optimization with a clipped surrogate (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Each update takes one rollout of the current policy and, for `num_epoch` passes over shuffled minibatches, descends

    -min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A) + 0.5 * value loss - beta * entropy

Details, as in ML-Agents 1.1.0 (`ppo/optimizer_torch.py`, `trainer/on_policy_trainer.py`) unless marked:
 1. Advantages by GAE for each reward signal with its own gamma, averaged over signals, normalised over the rollout.
 2. The critic's loss is the squared error, coefficient 0.5 (see b).
 3. Adam over actor and critic together (betas 0.9 and 0.999, epsilon 1e-8); no early stop by KL. Gradients are clipped
    only where `max_grad_norm` (Ludus' own key) says so.
 4. Learning rate, epsilon and beta follow their schedules at the policy's step when the update begins.
 5. Shuffling is over steps; a remainder that fills no minibatch is left out of that pass.
 6. Observations are normalised once per update: the statistics do not change during it.
 7. With a memory, segments are cut into sequences of `sequence_length` steps, the last one padded, and sequences are
    shuffled; `batch_size` is rounded down to whole ones. Actor and critic start each sequence with what they
    remembered: the actor what it did when it acted, the critic what it does now (`algorithms.recollection`).
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
 f. A rollout smaller than `batch_size` is learnt from as one minibatch; ML-Agents would silently skip it.
 g. An update that meets a value that is not finite or explodes is taken back as a whole, signals and cloning included,
    and raises `Diverged` (`algorithms.guards`).
 h. `critic_learning_rate` (Ludus' own key) is the step size of the critic's parameters, on the actor's schedule.
 i. The critic's memory is each agent's own; in ML-Agents all agents share one (see `algorithms.recollection`).
 j. Advantages are normalised over the steps, not over padding.
 k. What stands behind a termination for signals that go on beyond it is the mean value of the rollout's first steps of
    episodes. ML-Agents takes the value of the terminal observation, which is never learnt. On MountainCar-v0 with RND,
    whose rewards are above 0, the mean RND value fell to -357 in 450,000 steps so, twice as low every 25,000; with the
    same seed the last 100 episodes are worth -143 so, and -120 as it is here.

What it does not do: collect, count steps, write files, decide when to stop. Dimensions as in
`worker.learning.functional`.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ludus.collector.segments import Ending
from ludus.protocol.spec import BehaviorSpec
from server.config.config import PPOConfig
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.rollout import Rollout
from worker.experience.sequences import sequences_of
from worker.experience.transitions import Transitions, transitions_of
from worker.learning.algorithms.batch import Batch, Recurrence
from worker.learning.algorithms.bc import cloning_of
from worker.learning.algorithms.guards import Diverged, first_infinite
from worker.learning.algorithms.learnt import Learnt
from worker.learning.algorithms.ppo_stats import PolicyTrace, PPOStats, entropies, episode_rewards
from worker.learning.algorithms.recollection import Memories, recollect
from worker.learning.functional.losses import clipped_surrogate, clipped_value_loss, row_weights, squared_error
from worker.learning.functional.returns import beyond_termination, generalized_advantages, normalized
from worker.learning.functional.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule
from worker.learning.networks.actor import Actor
from worker.learning.networks.actor_critic import ActorCritic
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.optimizer import FlatAdam
from worker.learning.rewards.episodes import EpisodeReturns, segment_sums
from worker.learning.rewards.signals import SignalSet, extrinsic_alone

VALUE_COEFFICIENT = 0.5


class Rates(NamedTuple):
    """The scheduled numbers of one update."""

    learning_rate: float
    critic_learning_rate: float | None
    """None where the critic has none of its own."""
    epsilon: float
    beta: float


class Prepared(NamedTuple):
    """A rollout with its targets, frozen for all epochs."""

    batch: Batch
    recurrence: Recurrence | None
    """None without a memory."""
    transitions: Transitions
    """What reward signals see."""
    episodes: Float[Tensor, "B S"]
    """Each segment's sum of rewards, after strength."""


class PPO:
    """Actor, critic, optimizer and reward signals of one behavior."""

    version: int
    """How many updates the weights have seen: the version under which they are published."""

    def __init__(
        self,
        config: PPOConfig,
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
        hyper, memory = config.hyperparameters, config.network_settings.memory
        self.config, self.device, self.version = config, device, 0
        self._signals = extrinsic_alone(config.reward_signals, device) if signals is None else signals
        self._generator = torch.Generator().manual_seed(seed)
        self._model = ActorCritic(
            spec,
            config.network_settings,
            signals=len(self._signals),
            shared_critic=hyper.shared_critic,
            generator=self._generator,
        )
        self._model.to(device)
        self._optimizer = FlatAdam(*self._groups())
        self._length = 0 if memory is None else memory.sequence_length
        self._memories = Memories(self._model.memory_size, device)
        self._episodes = EpisodeReturns(len(self._signals))
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
        self._gradient_of = self._differentiate
        self.reconfigure(config)

    def reconfigure(self, config: PPOConfig) -> None:
        """Go on with another configuration from the next update on; see `Algorithm`."""
        self.config, hyper = config, config.hyperparameters
        kind, steps = hyper.learning_rate_schedule, config.max_steps
        self._learning_rate = Schedule(kind, hyper.learning_rate, LEARNING_RATE_FLOOR, steps)
        self._critic_learning_rate = Schedule(kind, hyper.critic_learning_rate or 0.0, LEARNING_RATE_FLOOR, steps)
        self._epsilon = Schedule(hyper.epsilon_schedule, hyper.epsilon, EPSILON_FLOOR, steps)
        self._beta = Schedule(hyper.beta_schedule, hyper.beta, BETA_FLOOR, steps)
        if self._cloning is not None:
            self._cloning.set_learning_rate(hyper.learning_rate)

    @property
    def actor(self) -> Actor:
        """The policy network, for exports."""
        return self._model.actor

    def round_steps(self) -> int:
        """Return how many agent steps an update learns from."""
        return self.config.hyperparameters.buffer_size

    def update(self, rollout: Rollout, step: int) -> dict[str, float]:
        """Improve the policy on one rollout; `step` is the policy's step, at which the schedules are read.

        Return what was measured, by metric name (`PPOStats`). Raise `Diverged`, with everything as before, if any
        value on the way is not finite or explodes.
        """
        # Inference mode saves a tenth of the time, but nothing can be differentiated automatically in it.
        by_hand = self.actor.layout.plain and not self._signals.learns and self._cloning is None
        with torch.inference_mode() if by_hand else torch.no_grad():
            return self._improve(rollout, step)

    def compile(self) -> None:
        """Let `torch.compile` fuse the operations: faster updates, after some 20 s once. Needs a C++ compiler."""
        compiled = torch.compile(self._differentiate)

        def gradient_of(minibatch: Batch, rates: Rates) -> tuple[dict[str, Tensor], Float[Tensor, " N"]]:
            # As a number it would be compiled in, anew for each value of its schedule.
            epsilon = torch.tensor(rates.epsilon, device=self.device)
            return compiled(minibatch, rates._replace(epsilon=epsilon))  # type: ignore[arg-type]  # the losses take both

        self._gradient_of = gradient_of

    def rates(self, step: int) -> Rates:
        """Return what an update at `step` uses."""
        own = self.config.hyperparameters.critic_learning_rate is not None
        return Rates(
            self._learning_rate.at(step),
            self._critic_learning_rate.at(step) if own else None,
            self._epsilon.at(step),
            self._beta.at(step),
        )

    def flat_weights(self) -> NDArray[np.float32]:
        """Return the actor's weights and normalizer statistics as collectors load them (see `networks.layout`)."""
        return self.actor.flatten()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next update depends on. Tensors are copies."""
        return {"version": self.version, **self._learnt.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._learnt.load_state_dict(state)
        self.version = state["version"]

    def _improve(self, rollout: Rollout, step: int) -> dict[str, float]:
        rates, before, trace = self.rates(step), self._learnt.save(), PolicyTrace()
        prepared = self._prepare(rollout)
        for minibatch in self._minibatches(prepared):
            terms, log_ratio = self._gradient_of(minibatch, rates)
            terms["gradient"] = self._step(rates)
            if self._signals.learns:
                terms |= self._signals.update(prepared.transitions.select(minibatch.steps))
            trace.add_policy(terms, log_ratio, minibatch.real)
        try:
            cloned = {} if self._cloning is None else self._cloning.update(step)
            finite = self._optimizer.all_finite() & self._signals.is_finite()
            measured = trace.conclude(prepared.batch, self._signals.names, rates.epsilon, finite, prepared.episodes)
            if measured is None:
                raise self._diagnosis(prepared.batch, trace)
        except Diverged:
            self._learnt.restore(before)
            raise
        self.actor.body.update_normalizer([column[: rollout.steps] for column in prepared.transitions.observations])
        self.version += 1
        earned = self._episodes.add(rollout, measured.episodes)
        stats = PPOStats(
            **measured.own,
            **rates._asdict(),
            policy_lag=float(self.version - 1 - rollout.versions.double().mean()),
            others={**measured.others, **episode_rewards(self._signals.names, earned), **cloned},
        )
        return stats.metrics()

    def _prepare(self, rollout: Rollout) -> Prepared:
        """Return the batch with its targets: values, rewards and advantages by the weights of before."""
        transitions, masks = transitions_of(rollout, self.device, squashed=False), rollout.action_masks
        pool = self.actor.encode(transitions.observations)  # all steps, then the segments' successors
        values, bootstrap, recurrence = self._values(rollout, pool)
        rewards = self._signals.evaluate(transitions)
        terminated, firsts = rollout.endings == Ending.TERMINATED, rollout.lengths.cumsum(0) - rollout.lengths
        beginnings = values[firsts[rollout.starts_episode].to(self.device)]
        advantages = generalized_advantages(
            rewards,
            values,
            beyond_termination(bootstrap, terminated, beginnings, self._signals.ignores_termination),
            rollout.lengths,
            terminated,
            gamma=self._signals.gamma,
            lambd=self.config.hyperparameters.lambd,
            ignores_termination=self._signals.ignores_termination,
        )
        batch = Batch(
            encoded=[part[: rollout.steps] for part in pool],
            continuous=rollout.continuous.to(self.device),
            discrete=transitions.discrete,
            masks=None if masks is None or bool(masks.all()) else masks.to(self.device),
            log_prob=rollout.log_probs.to(self.device).sum(1),
            advantage=normalized(advantages.mean(1)),
            values=values,
            returns=advantages + values,
            steps=transitions.index,
        )
        return Prepared(batch, recurrence, transitions, segment_sums(rewards, rollout))

    def _values(
        self, rollout: Rollout, pool: Encoded
    ) -> tuple[Float[Tensor, "N S"], Float[Tensor, "B S"], Recurrence | None]:
        """Return the values of all steps and of what followed each segment, and the memories that belong to them."""
        if not self._length:
            values, _ = self._model.values(pool)
            return values[: rollout.steps], values[rollout.steps :], None

        def recall(rows: Tensor, memory: Tensor, length: int) -> tuple[Tensor, Tensor]:
            values, after = self._model.values([part[rows] for part in pool], memory, length=length)
            assert after is not None, "a recurrent critic returns its memory"
            return values, after

        sequences = sequences_of(rollout.lengths, self._length)
        assert rollout.memories is not None, "recurrent policies leave their memories"
        acted = rollout.memories[sequences.first].to(self.device)
        if self._model.critic.body is None:  # one memory: the critic goes on from what the actor remembered
            firsts = rollout.lengths.cumsum(0) - rollout.lengths
            initial = rollout.memories[firsts].to(self.device)
        else:
            initial = self._memories.before(rollout)
        lived = recollect(rollout, sequences, initial, recall)
        self._memories.keep(rollout, lived.after)
        following = torch.arange(rollout.steps, rollout.steps + rollout.segments, device=self.device)
        bootstrap, _ = recall(following, lived.after, 1)
        return lived.features, bootstrap, Recurrence(sequences, acted, lived.before)

    def _minibatches(self, prepared: Prepared) -> Iterator[Batch]:
        hyper = self.config.hyperparameters
        for _ in range(hyper.num_epoch):
            yield from prepared.batch.minibatches(hyper.batch_size, self._generator, prepared.recurrence)

    def _differentiate(self, minibatch: Batch, rates: Rates) -> tuple[dict[str, Tensor], Float[Tensor, " N"]]:
        """Write the gradient of the objective on one minibatch to the weights' `grad`.

        Return the terms of the objective and the log-ratio of each action.
        """
        real = minibatch.real
        prediction = self._model.evaluate(
            minibatch.encoded,
            minibatch.continuous,
            minibatch.discrete,
            minibatch.masks,
            actor_memory=minibatch.actor_memory,
            critic_memory=minibatch.critic_memory,
            length=minibatch.length,
        )
        joint = prediction.joint
        log_ratio = joint.log_prob - minibatch.log_prob
        policy = clipped_surrogate(log_ratio, minibatch.advantage, rates.epsilon, real)
        if self.config.hyperparameters.clip_value_loss:
            value = clipped_value_loss(prediction.values, minibatch.values, minibatch.returns, rates.epsilon, real)
        else:
            value = squared_error(prediction.values, minibatch.returns, real)
        self._model.backward(
            prediction,
            by_log_prob=policy.slope,
            by_entropy=-rates.beta / len(log_ratio) if real is None else row_weights(real).mul_(-rates.beta),
            by_values=value.slope.mul_(VALUE_COEFFICIENT),
        )
        terms = {"policy loss": policy.loss, "value loss": value.loss}
        return {**terms, **entropies(joint, self.actor.log_sigma, real)}, log_ratio

    def _step(self, rates: Rates) -> Float[Tensor, ""]:
        own = rates.critic_learning_rate
        both = rates.learning_rate if own is None else (rates.learning_rate, own)
        return self._optimizer.step(both, self.config.hyperparameters.max_grad_norm)

    def _groups(self) -> list[list[tuple[str, torch.nn.Parameter]]]:
        """Return the trained parameters, those of the critic apart if they have a learning rate of their own."""
        named = list(self._model.trained_parameters())
        if self.config.hyperparameters.critic_learning_rate is None:
            return [named]
        critic = [item for item in named if item[0].startswith("critic.")]
        return [[item for item in named if not item[0].startswith("critic.")], critic]

    def _diagnosis(self, batch: Batch, trace: PolicyTrace) -> Diverged:
        """Return an error that names what was wrong first."""
        columns = [
            *(("observations", part) for part in batch.encoded),
            ("continuous", batch.continuous),
            ("log-prob", batch.log_prob),
            ("values", batch.values),
            ("returns", batch.returns),
            ("advantage", batch.advantage),
        ]
        spoiled = self._signals.spoiled()
        return (
            first_infinite(columns)
            or trace.diagnosis()
            or first_infinite((f"weights of {name}", weight) for name, weight in self._model.named_parameters())
            or Diverged("optimizer" if spoiled is None else f"weights of {spoiled}", len(trace) - 1)
        )
